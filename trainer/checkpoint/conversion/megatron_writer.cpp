#include "trainer/checkpoint/conversion/megatron_writer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trainer/checkpoint/containers/dcp.h"
#include "trainer/checkpoint/containers/torch_file.h"
#include "trainer/checkpoint/conversion/new_folder.h"
#include "trainer/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/checkpoint/formats/native/native_source.h"
#include "trainer/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {
namespace {

using megatron::MegatronWeight;
using megatron::ShapeOf;

constexpr std::int64_t kFileBytes = std::int64_t{4} << 30;

/// Of one state, or of the weights: what is written.
struct State {
  std::string name;  ///< "": the weights
  ShapeOf shapes;
  std::map<std::string, DType> dtypes;
};

std::vector<State> states_of(const std::vector<TensorEntry>& entries) {
  std::map<std::string, State> states;
  for (const TensorEntry& entry : entries) {
    const StateKey key = parse_state_key(entry.key);
    State& state = states[key.state];
    state.name = key.state;
    state.shapes[key.weight] = entry.shape;
    state.dtypes[key.weight] = entry.dtype;
  }
  std::vector<State> list;
  for (auto& [name, state] : states) list.push_back(std::move(state));
  return list;
}

/// Data files of bounded size, one after the other.
class DataFiles {
 public:
  DataFiles(const Place& place) : place_(place) {}
  DcpFileWriter& next(std::int64_t bytes) {
    if (file_ && bytes_ + bytes > kFileBytes) close();
    if (!file_)
      file_ = std::make_unique<DcpFileWriter>(*place_.storage, place_.path,
                                              dcp_file_name(0, number_++));
    bytes_ += bytes;
    return *file_;
  }
  void close() {
    if (file_) file_->close();
    file_ = nullptr;
    bytes_ = 0;
  }

 private:
  const Place& place_;
  std::unique_ptr<DcpFileWriter> file_;
  std::int64_t number_ = 0, bytes_ = 0;
};

class Writer {
 public:
  Writer(const TensorSource& source, const Place& place, ByteProgress& done)
      : source_(source), index_(index_of(source)), files_(place), done_(done) {}

  void add(const State& state, const std::vector<MegatronWeight>& weights) {
    std::int64_t layers = 0;
    for (const MegatronWeight& weight : weights) layers = std::max(layers, weight.layer + 1);
    for (const MegatronWeight& weight : weights) write(state, weight, layers);
    if (state.name.empty()) add_extra_states(weights, layers);
  }
  DcpMetadata finish() {
    files_.close();
    return std::move(metadata_);
  }

 private:
  void write(const State& state, const MegatronWeight& weight, std::int64_t layers) {
    const DType dtype = state.dtypes.at(weight.blocks.front().key);
    const TensorMeta chunk{.dtype = dtype, .shape = with_layer(weight, weight.shape, 1)};
    const std::string key = (state.name.empty() ? "" : state_prefix(state.name)) +
                            (weight.layer < 0 ? "" : megatron::kLayers) + weight.key;
    DcpTensor& tensor = metadata_.tensors[key];
    tensor.meta = {.dtype = dtype, .shape = with_layer(weight, weight.shape, layers)};
    DcpFileWriter& file = files_.next(chunk.bytes());
    file.begin_chunk(chunk);
    TensorFill(source_, index_)
        .write({.dtype = dtype, .shape = weight.shape}, parts_of(state, weight),
               [&](std::span<const std::byte> bytes) {
                 file.write(bytes);
                 done_.add(bytes.size());
               });
    const Shape zeros(weight.shape.size(), 0);
    tensor.chunks.push_back({.offsets = with_layer(weight, zeros, weight.layer),
                             .sizes = chunk.shape,
                             .place = file.end_chunk()});
  }
  static Shape with_layer(const MegatronWeight& weight, Shape shape, std::int64_t size) {
    if (weight.layer >= 0) shape.insert(shape.begin(), size);
    return shape;
  }
  static std::vector<ShardedPart> parts_of(const State& state, const MegatronWeight& weight) {
    std::vector<ShardedPart> parts;
    for (const megatron::RowBlock& block : weight.blocks) {
      ShardedPart part;
      part.tensor.key = StateKey{state.name, block.key}.text();
      part.tensor.dtype = state.dtypes.at(block.key);
      part.tensor.global_shape = state.shapes.at(block.key);
      part.local = {Shape(weight.shape.size(), 0), weight.shape};
      part.tensor.global_offset = part.local.offset;
      if (!weight.shape.empty()) {
        part.local.offset[0] = block.first;
        part.local.shape[0] = block.rows;
        part.tensor.global_offset[0] = block.native_first;
      }
      part.tensor.local_shape = part.local.shape;
      parts.push_back(std::move(part));
    }
    return parts;
  }
  /// Empty states of modules that may have some in eight-bit training: Megatron-core asks for them.
  void add_extra_states(const std::vector<MegatronWeight>& weights, std::int64_t layers) {
    std::set<std::pair<std::string, std::int64_t>> modules;
    for (const MegatronWeight& weight : weights) {
      const std::size_t end = weight.key.find(".weight");
      if (weight.layer >= 0 && end != std::string::npos)
        modules.emplace(weight.key.substr(0, end), weight.layer);
    }
    for (const auto& [module, layer] : modules) {
      const ShardedObject object{
          megatron::kLayers + module + "._extra_state", {layers}, {layer}, {}};
      metadata_.objects[object.unique_key()] = files_.next(0).add_object(Value::list({Value()}));
    }
  }

  const TensorSource& source_;
  TensorIndex index_;
  DataFiles files_;
  ByteProgress& done_;
  DcpMetadata metadata_;
};

std::int64_t rows_of(const ShapeOf& shapes, const std::string& end, std::size_t axis) {
  for (const auto& [key, shape] : shapes) {
    if (key.ends_with(end) && shape.size() > axis) return shape[axis];
  }
  return 0;
}

/// What Megatron-LM compares with its own arguments when it goes on.
Value arguments_of(const std::vector<MegatronWeight>& weights,
                   const megatron::AttentionSizes& attention) {
  ShapeOf shapes;
  std::int64_t layers = 0;
  for (const MegatronWeight& weight : weights) {
    shapes[weight.key] = weight.shape;
    layers = std::max(layers, weight.layer + 1);
  }
  const std::int64_t hidden = rows_of(shapes, "word_embeddings.weight", 1);
  const std::int64_t ffn = rows_of(shapes, "mlp.linear_fc2.weight", 1);
  const bool has_positions = shapes.contains("embedding.position_embeddings.weight");
  const bool has_output = shapes.contains("output_layer.weight");
  return Value::instance(
      "argparse.Namespace",
      Value::dict({{"num_layers", layers},
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
                   {"normalization",
                    shapes.contains("decoder.final_layernorm.bias") ? "LayerNorm" : "RMSNorm"},
                   {"untie_embeddings_and_output_weights", Value(has_output)},
                   {"ckpt_format", "torch_dist"}}));
}

void write_common(const TensorSource& source, const Place& place,
                  const std::vector<MegatronWeight>& weights,
                  const megatron::AttentionSizes& attention) {
  const auto* training = dynamic_cast<const native::NativeSource*>(&source);
  Value arguments = arguments_of(weights, attention);
  std::int64_t step = 0, samples = 0;
  if (training != nullptr) {
    step = training->manifest().step;
    samples = training->manifest().consumed_samples;
  }
  Value common = Value::dict({{"args", arguments},
                              {"checkpoint_version", Value(3.0)},
                              {"iteration", step},
                              {"consumed_train_samples", samples},
                              {"num_floating_point_operations_so_far", Value(0)}});
  TorchFileWriter(place.storage->create(join_path(place.path, megatron::kCommonFile)))
      .finish(common);
}

}  // namespace

void write_megatron(const TensorSource& source, const Place& place, const ConvertOptions& options,
                    const megatron::AttentionSizes& attention, const Progress& progress) {
  check_new_folder(place, megatron::kMetadataFile);
  const ConvertedTensors tensors(source, options);
  std::vector<std::pair<State, std::vector<MegatronWeight>>> plan;
  for (State& state : states_of(tensors.entries())) {
    std::vector<MegatronWeight> weights =
        megatron::to_megatron(state.shapes, attention, source.address());
    plan.emplace_back(std::move(state), std::move(weights));
  }
  if (plan.empty() || !plan.front().first.name.empty())
    throw ConfigError(source.address() + ": holds no weights");
  begin_new_folder(place);
  ByteProgress done(tensors.entries(), progress);
  Writer writer(source, place, done);
  for (const auto& [state, weights] : plan) writer.add(state, weights);
  write_common(source, place, plan.front().second, attention);
  write_dcp_metadata(*place.storage, place.path, writer.finish());
  place.storage->write_text(join_path(place.path, megatron::kMetadataFile),
                            R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
                            R"("common_backend": "torch", "common_backend_version": 1})");
  end_new_folder(place);
}

}  // namespace trellis::checkpoint
