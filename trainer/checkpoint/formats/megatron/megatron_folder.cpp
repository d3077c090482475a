#include "trainer/checkpoint/formats/megatron/megatron_folder.h"

#include <set>
#include <string>
#include <utility>

#include "trainer/checkpoint/containers/torch_file.h"
#include "trainer/checkpoint/formats/megatron/arguments.h"
#include "trainer/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/checkpoint/sharding/sharded_tensor.h"
#include "trainer/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::megatron {
namespace {

/// Weights without their axis of layers, by the key without "decoder.layers.".
struct Weights {
  ShapeOf shapes;
  std::int64_t layers = 0;
};

Weights weights_of(const DcpMetadata& metadata) {
  Weights weights;
  for (const auto& [key, tensor] : metadata.tensors) {
    if (!parse_state_key(key).state.empty()) continue;
    const Shape& shape = tensor.meta.shape;
    if (!key.starts_with(kLayers)) {
      weights.shapes[key] = shape;
      continue;
    }
    weights.layers = shape.front();
    weights.shapes[key.substr(std::string(kLayers).size())] = {shape.begin() + 1, shape.end()};
  }
  return weights;
}

std::int64_t rows_of(const ShapeOf& shapes, const std::string& end, std::size_t axis) {
  for (const auto& [key, shape] : shapes) {
    if (key.ends_with(end) && shape.size() > axis) return shape[axis];
  }
  return 0;
}

/// What Megatron-LM compares with its own arguments when it goes on.
Value arguments_of(const Weights& weights, const AttentionSizes& attention,
                   const trainer::ModelSection* model) {
  const ShapeOf& shapes = weights.shapes;
  const std::int64_t hidden = rows_of(shapes, "word_embeddings.weight", 1);
  const std::int64_t ffn = rows_of(shapes, "mlp.linear_fc2.weight", 1);
  const bool has_positions = shapes.contains("embedding.position_embeddings.weight");
  const bool has_output = shapes.contains("output_layer.weight");
  Value arguments = Value::dict(
      {{"num_layers", weights.layers},
       {"hidden_size", hidden},
       {"ffn_hidden_size", ffn},
       {"num_attention_heads", attention.heads},
       {"group_query_attention", Value(attention.groups() != attention.heads)},
       {"num_query_groups", attention.groups()},
       {"kv_channels", attention.heads > 0
                           ? rows_of(shapes, "linear_proj.weight", 1) / attention.heads
                           : std::int64_t{0}},
       {"padded_vocab_size", rows_of(shapes, "word_embeddings.weight", 0)},
       {"swiglu", Value(rows_of(shapes, "linear_fc1.weight", 0) == 2 * ffn)},
       {"add_position_embedding", Value(has_positions)},
       {"position_embedding_type", has_positions ? "learned_absolute" : "rope"},
       {"normalization", shapes.contains("decoder.final_layernorm.bias") ? "LayerNorm" : "RMSNorm"},
       {"untie_embeddings_and_output_weights", Value(has_output)},
       {"ckpt_format", "torch_dist"}});
  if (model != nullptr) set_arguments(*model, arguments);
  return Value::instance("argparse.Namespace", std::move(arguments));
}

}  // namespace

void add_extra_states(DcpMetadata& metadata, DcpFileWriter& file) {
  const Weights weights = weights_of(metadata);
  std::set<std::string> modules;
  for (const auto& [key, tensor] : metadata.tensors) {
    const std::size_t end = key.find(".weight");
    if (key.starts_with(kLayers) && end != std::string::npos) modules.insert(key.substr(0, end));
  }
  for (const std::string& module : modules) {
    for (std::int64_t layer = 0; layer < weights.layers; ++layer) {
      const ShardedObject object{module + "._extra_state", {weights.layers}, {layer}, {}};
      metadata.objects[object.unique_key()] = file.add_object(Value::list({Value()}));
    }
  }
}

void finish_folder(const Place& place, const DcpMetadata& metadata, const AttentionSizes& attention,
                   const SavedPoint& point, const trainer::ModelSection* model) {
  const Value common = Value::dict({{"args", arguments_of(weights_of(metadata), attention, model)},
                                    {"checkpoint_version", Value(3.0)},
                                    {"iteration", point.step},
                                    {"consumed_train_samples", point.consumed_samples},
                                    {"num_floating_point_operations_so_far", Value(0)}});
  TorchFileWriter(place.storage->create(join_path(place.path, kCommonFile))).finish(common);
  write_dcp_metadata(*place.storage, place.path, metadata);
  place.storage->write_text(join_path(place.path, kMetadataFile),
                            R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
                            R"("common_backend": "torch", "common_backend_version": 1})");
}

}  // namespace trellis::checkpoint::megatron
