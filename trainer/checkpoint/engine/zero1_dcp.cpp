#include "trainer/checkpoint/engine/zero1_dcp.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <ATen/ops/full.h>

#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/hashing_file.h"
#include "trainer/files/checkpoint/formats/native/main_parts.h"

namespace trellis::checkpoint::native {
namespace {

using trainer::StateExtent;

/// Puts tensors of a rank into its data file.
class StatesBuilder {
 public:
  explicit StatesBuilder(const FilePlace& place) : place_(place) {
    job_.path = kStatesFolder + dcp_file_name(place.state_copies.front(), 0);
    job_.holders = place.state_copies;
  }

  void add(const LiveTensor& state, const Shape& parameter) {
    const RankPlace& rank = place_.place;
    const bool of_elements = state.span.extent == StateExtent::kElements;
    const bool of_rows = of_elements || state.span.extent == StateExtent::kRows;
    Shape whole = of_elements ? parameter : state.values.sizes().vec();
    Shape offset(whole.size(), 0);
    at::Tensor values = state.values;
    if (of_rows) {
      whole.front() = parameter.front();
      offset.front() = state.span.first_row;
      values = values.narrow(0, 0, state.span.rows);  // the rest is padding
    }
    // All ranks have what there is per column or parameter.
    if (values.numel() == 0 || (!of_rows && rank.shard_rank() != 0)) return;
    const Owner owner{rank.shards(), rank.ep_rank, state.of_experts};
    add(key_of(state), std::move(whole), std::move(offset), values, state.parts, owner);
  }
  /// The number of steps, of one parameter.
  void add_step(const std::string& parameter, const at::Tensor& step) {
    add("base_state." + parameter + ".step", {}, {}, step, {}, {});
  }
  void add_object(std::string key, Value value) {
    job_.objects.emplace_back(std::move(key), std::move(value));
  }
  [[nodiscard]] std::vector<FileJob> finish() {
    if (job_.chunks.empty() && job_.objects.empty()) return {};
    return {std::move(job_)};
  }

 private:
  [[nodiscard]] std::string key_of(const LiveTensor& state) const {
    const std::string folder = folder_of(state.state);
    std::string key = folder + "." + state.name_in_file();
    if (folder == kBaseState) key += "." + state.state;
    const auto add = [&](const char* axis, int size, int rank) {
      std::string digits = std::to_string(rank);
      digits.insert(0, digits.size() < 4 ? 4 - digits.size() : 0, '0');
      if (size > 1) key += std::string("|") + axis + "-" + digits;
    };
    add("pp", place_.pp_size, place_.pp_rank);
    add("ep", state.of_experts ? place_.place.ep_size : 1, place_.place.ep_rank);
    add("tp", place_.place.tp_size, place_.place.tp_rank);
    return key;
  }
  void add(std::string key, Shape whole, Shape offset, const at::Tensor& values,
           const std::vector<ShardedPart>& parts, const Owner& owner) {
    const Shape sizes = values.sizes().vec();
    const DType dtype = dtype_of(values.scalar_type());
    ChunkJob chunk{std::move(key),
                   {.dtype = dtype, .shape = std::move(whole)},
                   {std::move(offset), sizes},
                   job_.tensors.size(),
                   1};
    StoredTensor stored{job_.path, {}, dtype, sizes, main_parts(parts, owner)};
    if (!stored.parts.empty()) chunk.stored = std::move(stored);
    job_.tensors.push_back(values);
    job_.parts.push_back(parts);
    job_.chunks.push_back(std::move(chunk));
  }

  const FilePlace& place_;
  FileJob job_;
};

void add_objects(const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer, double lr,
                 StatesBuilder& builder) {
  const Value shapes = shape_info_of(live, optimizer);
  for (const auto& [id, shape] : shapes.as_dict())
    builder.add_object("shape_info." + std::to_string(id.as_int()), shape);
  const Value groups = param_groups_of(live, optimizer, lr);
  for (std::size_t i = 0; i < groups.items().size(); ++i) {
    for (const auto& [name, value] : groups.items()[i].as_dict())
      builder.add_object("param_groups." + std::to_string(i) + "." + name.as_string(), value);
  }
}

/// The keys of dicts, as texts, and places in lists on the way to a value; names of parameters have
/// dots, too.
Value path_of(const std::string& key) {
  const std::string_view text = key;
  const std::size_t first = text.find('.'), last = text.rfind('.');
  const std::string_view folder = text.substr(0, first), rest = text.substr(first + 1);
  const auto number = [](std::string_view digits) {
    std::int64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return Value(value);
  };
  const std::string_view middle = last > first ? text.substr(first + 1, last - first - 1) : "";
  if (folder == "param_groups")
    return Value::tuple({folder, number(middle), text.substr(last + 1)});
  if (folder == kBaseState) return Value::tuple({folder, middle, text.substr(last + 1)});
  return Value::tuple({folder, rest});
}

}  // namespace

std::vector<FileJob> dcp_optimizer_jobs(const LiveState& live,
                                        const trainer::NeuronZero1Optimizer& optimizer, double lr,
                                        const FilePlace& place) {
  StatesBuilder builder(place);
  for (const LiveTensor& state : live.optimizer) {
    const LiveTensor& parameter = live.model.at(static_cast<std::size_t>(state.id));
    builder.add(state, parameter.values.sizes().vec());
  }
  const RankPlace& rank = place.place;
  if (rank.shard_rank() == 0 && rank.tp_rank == 0) {
    const at::Tensor step = at::full({}, static_cast<double>(optimizer.steps()), at::kFloat);
    std::set<std::string> names;
    for (const LiveTensor* parameter : trained_weights(live, optimizer)) {
      if (names.insert(parameter->parameter).second) builder.add_step(parameter->parameter, step);
    }
  }
  if (place.state_copies.front() == 0) add_objects(live, optimizer, lr, builder);
  return builder.finish();
}

void write_states(Storage& storage, const std::string& folder, const FileJob& job,
                  const WriteBox& write, Durability durability, Written& written) {
  auto result = std::make_shared<HashingFile::Result>();
  DcpFileWriter file(std::make_unique<HashingFile>(
                         storage.create(join_path(folder, job.path), durability), result),
                     job.path.substr(std::string_view(kStatesFolder).size()));
  for (const ChunkJob& chunk : job.chunks) {
    written.states.push_back(write_chunk(file, chunk, write));
    if (!chunk.stored) continue;
    StoredTensor& stored = written.tensors.emplace_back(*chunk.stored);
    stored.entry_offset = written.states.back().box.place.offset;
    stored.entry_length = written.states.back().box.place.length;
  }
  for (const auto& [key, value] : job.objects) written.objects[key] = file.add_object(value);
  file.close();
  written.files[job.path] = result->stored();
}

void write_states_metadata(Storage& storage, const std::string& folder, Written& all) {
  DcpMetadata metadata;
  metadata.objects = std::move(all.objects);
  std::ranges::sort(all.states, {}, [](const WrittenChunk& chunk) {
    return std::tie(chunk.key, chunk.box.offsets, chunk.box.place.file);
  });
  for (WrittenChunk& chunk : all.states) {
    DcpTensor& tensor = metadata.tensors[chunk.key];
    tensor.meta = std::move(chunk.meta);
    // Both stages of a tied weight have its number of steps.
    const bool is_copy =
        !tensor.chunks.empty() && tensor.chunks.back().offsets == chunk.box.offsets;
    if (!is_copy) tensor.chunks.push_back(std::move(chunk.box));
  }
  metadata.planner_data = Value::dict();
  for (const auto& [key, tensor] : metadata.tensors) metadata.planner_data.set(key, path_of(key));
  for (const auto& [key, place] : metadata.objects) metadata.planner_data.set(key, path_of(key));
  write_dcp_metadata(storage, join_path(folder, "optim"), metadata);
  all.files[kStatesMetadataFile] = hash_file(*storage.open(join_path(folder, kStatesMetadataFile)));
}

}  // namespace trellis::checkpoint::native
