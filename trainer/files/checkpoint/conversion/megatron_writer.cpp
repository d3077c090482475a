#include "trainer/files/checkpoint/conversion/megatron_writer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/conversion/new_folder.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_folder.h"
#include "trainer/files/checkpoint/formats/megatron/megatron_source.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"

namespace trellis::checkpoint {
namespace {

using megatron::MegatronWeight;
using megatron::ShapeOf;

constexpr std::int64_t kFileBytes = std::int64_t{4} << 30;

/// Tensors of one state, or of the weights, that are written.
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
    const megatron::LayerAxis axis = megatron::axis_of(weights);
    for (const MegatronWeight& weight : weights) write(state, weight, axis);
  }
  DcpMetadata finish() {
    megatron::add_extra_states(metadata_, files_.next(0));
    files_.close();
    return std::move(metadata_);
  }

 private:
  void write(const State& state, const MegatronWeight& weight, const megatron::LayerAxis& axis) {
    const DType dtype = state.dtypes.at(weight.blocks.front().key);
    const megatron::MegatronPlace place = megatron::place_of(weight, axis);
    const Box box = place.box({Shape(weight.shape.size(), 0), weight.shape});
    const TensorMeta chunk{.dtype = dtype, .shape = box.shape};
    DcpTensor& tensor =
        metadata_.tensors[(state.name.empty() ? "" : state_prefix(state.name)) + place.key];
    tensor.meta = {.dtype = dtype, .shape = place.shape};
    DcpFileWriter& file = files_.next(chunk.bytes());
    file.begin_chunk(chunk);
    TensorFill(source_, index_)
        .write({.dtype = dtype, .shape = weight.shape}, parts_of(state, weight),
               [&](std::span<const std::byte> bytes) {
                 file.write(bytes);
                 done_.add(bytes.size());
               });
    tensor.chunks.push_back(
        {.offsets = box.offset, .sizes = chunk.shape, .place = file.end_chunk()});
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

  const TensorSource& source_;
  TensorIndex index_;
  DataFiles files_;
  ByteProgress& done_;
  DcpMetadata metadata_;
};

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
  megatron::finish_folder(place, writer.finish(), attention, source.point(), options.model);
  end_new_folder(place);
}

}  // namespace trellis::checkpoint
