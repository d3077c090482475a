#include "trainer/files/checkpoint/formats/megatron/megatron_folder.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/megatron/arguments.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/plan/boxes.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint::megatron {
namespace {

/// Weights without their axes of layers and experts, by the key without "decoder.layers." and
/// without a layer's number.
struct Weights {
  ShapeOf shapes;
  std::int64_t layers = 0, experts = 0;
};

bool is_of_experts(const std::string& key) {
  return key.find("mlp.experts.experts.") != std::string::npos;
}

/// The layer in "decoder.layers.3.mlp.…"; −1: the tensor has an axis of layers instead.
std::int64_t layer_number(const std::string& key, std::size_t& end) {
  std::int64_t layer = -1;
  const char* begin = key.data() + std::string_view(kLayers).size();
  const auto [rest, error] = std::from_chars(begin, key.data() + key.size(), layer);
  end = static_cast<std::size_t>(rest - key.data()) + (error == std::errc() ? 1 : 0);
  return error == std::errc() ? layer : -1;
}

Weights weights_of(const DcpMetadata& metadata) {
  Weights weights;
  for (const auto& [key, tensor] : metadata.tensors) {
    if (!parse_state_key(key).state.empty()) continue;
    Shape shape = tensor.meta.shape;
    if (!key.starts_with(kLayers)) {
      weights.shapes[key] = shape;
      continue;
    }
    std::size_t end = 0;
    const std::int64_t layer = layer_number(key, end);
    weights.layers = std::max(weights.layers, layer < 0 ? shape.front() : layer + 1);
    if (layer < 0) shape.erase(shape.begin());
    if (is_of_experts(key)) {
      weights.experts = shape.front();
      shape.erase(shape.begin());
    }
    weights.shapes[key.substr(end)] = shape;
  }
  return weights;
}

std::int64_t rows_of(const ShapeOf& shapes, const std::string& end, std::size_t axis) {
  for (const auto& [key, shape] : shapes) {
    if (key.ends_with(end) && shape.size() > axis) return shape[axis];
  }
  return 0;
}

/// Arguments that Megatron-LM compares with its own when a training continues.
Value arguments_of(const Weights& weights, const AttentionSizes& attention,
                   const trainer::ModelSection* model) {
  const ShapeOf& shapes = weights.shapes;
  const std::int64_t hidden = rows_of(shapes, "word_embeddings.weight", 1);
  const bool is_mixed = weights.experts > 0;
  const std::int64_t of_experts = rows_of(shapes, "experts.linear_fc2.weight", 1),
                     dense = rows_of(shapes, "mlp.linear_fc2.weight", 1),
                     ffn = dense > 0 ? dense : of_experts;
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
  if (is_mixed) {
    arguments.set("num_experts", weights.experts);
    arguments.set("moe_ffn_hidden_size", of_experts);
  }
  if (model != nullptr) set_arguments(*model, arguments);
  return Value::instance("argparse.Namespace", std::move(arguments));
}

}  // namespace

void add_extra_states(DcpMetadata& metadata, DcpFileWriter& file) {
  for (const auto& [key, tensor] : metadata.tensors) {
    const std::size_t end = key.find(".weight");
    if (!key.starts_with(kLayers) || end == std::string::npos) continue;
    // One for each layer and expert; of a layer that its key names, one.
    std::size_t number_end = 0;
    Shape grid;
    if (layer_number(key, number_end) < 0) grid.push_back(tensor.meta.shape.front());
    if (is_of_experts(key)) grid.push_back(tensor.meta.shape.at(grid.size()));
    if (grid.empty()) grid.push_back(1);
    for_each_piece(grid, 1, [&](const Box& place) {
      const ShardedObject object{key.substr(0, end) + "._extra_state", grid, place.offset, {}};
      metadata.objects[object.unique_key()] = file.add_object(Value::list({Value()}));
    });
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
