#include "trainer/checkpoint/engine/state_files.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <ATen/ops/full.h>

#include "base/output_error.h"
#include "trainer/checkpoint/engine/zero1_dcp.h"  // pair: one of two forms of the same states
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/containers/torch_file.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/native/hashing_file.h"
#include "trainer/files/checkpoint/formats/native/main_parts.h"

namespace trellis::checkpoint::native {
namespace {

/// Puts tensors into files: into one, or, for xser, each into its own.
class JobBuilder {
 public:
  JobBuilder(std::string path, std::vector<int> holders, const FileOptions& options)
      : path_(std::move(path)), holders_(std::move(holders)), xser_(options.use_xser) {}

  /// The value that represents a tensor in the root whose content is not written.
  Value add_shape(const at::Tensor& tensor, bool of_experts) {
    const auto number = static_cast<std::int64_t>(count_);
    Value info = Value::dict({{"dtype", Value::dtype(dtype_of(tensor.scalar_type()))},
                              {"shape", Value::size(tensor.sizes().vec())}});
    if (!xser_) return info;
    ++count_;
    info.set("expert_model_parallel", Value(of_experts));
    info_.emplace_back(Value(number), std::move(info));
    return reference(number);
  }

  /// The value that represents the tensor in the root.
  Value add(const at::Tensor& tensor, std::vector<PathKey> path,
            const std::vector<ShardedPart>& parts, const Owner& owner) {
    const auto number = static_cast<std::int64_t>(count_++);
    StoredTensor stored{xser_ ? xser_tensor_file(path_, number) : path_,
                        xser_ ? std::vector<PathKey>{} : std::move(path),
                        dtype_of(tensor.scalar_type()), tensor.sizes().vec(),
                        main_parts(parts, owner)};
    if (!xser_) {
      main_.tensors.push_back(tensor);
      main_.parts.push_back(parts);
      if (!stored.parts.empty()) main_.stored.push_back(std::move(stored));
      return Value::tensor(number);
    }
    info_.emplace_back(Value(number),
                       Value::dict({{"dtype", Value::dtype(stored.dtype)},
                                    {"shape", Value::size(stored.shape)},
                                    {"expert_model_parallel", Value(owner.of_experts)}}));
    FileJob job{stored.file, Value::tensor(0), {tensor}, {}, holders_, {parts}};
    if (!stored.parts.empty()) job.stored.push_back(std::move(stored));
    jobs_.push_back(std::move(job));
    return reference(number);
  }

  std::vector<FileJob> finish(Value root) {
    main_.path = path_;
    main_.root = std::move(root);
    main_.holders = holders_;
    jobs_.push_back(std::move(main_));
    if (xser_)
      jobs_.push_back({xser_info_file(path_), Value::dict(std::move(info_)), {}, {}, holders_});
    return std::move(jobs_);
  }

 private:
  static Value reference(std::int64_t number) {
    return Value::instance("torch_xla.utils.serialization.TensorReference",
                           Value::dict({{"tid", Value(number)}}));
  }

  std::string path_;
  std::vector<int> holders_;
  bool xser_;
  std::size_t count_ = 0;
  FileJob main_;
  std::vector<FileJob> jobs_;
  std::vector<std::pair<Value, Value>> info_;
};

/// Number of the parameter → values.
class ById {
 public:
  Value& of(std::int64_t id) { return values_[id]; }
  [[nodiscard]] Value value() const {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [id, value] : values_) items.emplace_back(Value(id), value);
    return Value::dict(std::move(items));
  }

 private:
  std::map<std::int64_t, Value> values_;
};

/// As names of files have it: none without EP.
std::optional<int> ep_of(const RankPlace& place) {
  return place.ep_size > 1 ? std::optional(place.ep_rank) : std::nullopt;
}

/// Without their addresses: tensors of shapes alone have none.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset();
}

at::Tensor as_saved(const at::Tensor& values, const FileOptions& options) {
  return options.save_bf16 && values.is_floating_point() ? values.to(at::kBFloat16) : values;
}

}  // namespace

std::vector<StoredPart> main_parts(const std::vector<ShardedPart>& parts, const Owner& owner) {
  std::vector<StoredPart> stored;
  if (owner.shards == 1 && owner.ep_rank > 0 && !owner.of_experts) return stored;
  for (const ShardedPart& part : parts) {
    ReplicaId id = part.tensor.replica_id;
    id.back() %= owner.shards;
    if (!is_main_replica(id)) continue;
    stored.push_back(
        {part.tensor.key, part.tensor.global_shape, part.tensor.global_offset, part.local});
  }
  return stored;
}

std::int64_t FileJob::bytes() const {
  std::int64_t total = 0;
  for (const at::Tensor& tensor : tensors)
    total += tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
  return total;
}

FilePlace file_place_of(const trainer::RankMesh& mesh, const trainer::ParallelState& parallel,
                        int self, bool zero1) {
  using trainer::ParallelAxis;
  return {checkpoint::place_of(parallel, zero1), parallel.get_pipeline_model_parallel_rank(),
          parallel.get_pipeline_model_parallel_size(), mesh.ranks(ParallelAxis::kExpertData, self),
          mesh.ranks(zero1 ? ParallelAxis::kFsdpReplicas : ParallelAxis::kExpertData, self)};
}

std::vector<FileJob> model_jobs(const LiveState& live, const FilePlace& place,
                                const FileOptions& options,
                                const std::set<std::string>& with_masters) {
  const RankPlace& rank = place.place;
  JobBuilder builder(model_file(rank.tp_rank, place.pp_rank, ep_of(rank)), place.copies, options);
  std::vector<std::pair<Value, Value>> items;
  std::set<std::string> names;
  for (const LiveTensor& tensor : live.model) {
    if (!names.insert(tensor.parameter).second) continue;
    const at::Tensor values = as_saved(tensor.values, options);
    const std::string& name = tensor.name_in_file();
    if (options.masters_replace_weights && with_masters.contains(tensor.parameter)) {
      items.emplace_back(name, builder.add_shape(values, tensor.of_experts));
      continue;
    }
    items.emplace_back(
        name, builder.add(values, {name}, tensor.parts, {1, rank.ep_rank, tensor.of_experts}));
  }
  if (!options.lora_config.is_none()) items.emplace_back("lora_config", options.lora_config);
  return builder.finish(Value::ordered_dict(std::move(items)));
}

const char* folder_of(const std::string& state) {
  if (state == "fp32_param") return "sharded_master_weights";
  return state == "ema" ? "ema_weights" : kBaseState;
}

std::vector<const LiveTensor*> trained_weights(const LiveState& live,
                                               const trainer::NeuronZero1Optimizer& optimizer) {
  std::vector<const LiveTensor*> weights;
  optimizer.for_each_slot([&](const trainer::ShardSlot& slot) {
    for (const LiveTensor& tensor : live.model) {
      if (is_same_memory(tensor.values, slot.parameter->tensor)) weights.push_back(&tensor);
    }
  });
  return weights;
}

Value shape_info_of(const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer) {
  ById shapes;
  for (const LiveTensor* tensor : trained_weights(live, optimizer))
    shapes.of(tensor->id) = Value::size(tensor->values.sizes().vec());
  return shapes.value();
}

Value param_groups_of(const LiveState& live, const trainer::NeuronZero1Optimizer& optimizer,
                      double lr) {
  std::multimap<std::string, std::int64_t> ids;
  for (const LiveTensor& tensor : live.model) ids.emplace(tensor.parameter, tensor.id);
  Value::List groups;
  for (const auto& group : optimizer.param_groups()) {
    Value::List params, names;
    std::set<std::string> seen;
    for (const std::string& parameter : group.names) {
      if (!seen.insert(parameter).second) continue;
      const auto [first, end] = ids.equal_range(parameter);
      for (auto it = first; it != end; ++it) {
        params.emplace_back(it->second);
        names.emplace_back(parameter);
      }
    }
    groups.push_back(Value::dict({{"lr", Value(lr * group.numbers.lr_scale)},
                                  {"weight_decay", Value(group.numbers.weight_decay)},
                                  {"params", Value::list(std::move(params))},
                                  {"param_names", Value::list(std::move(names))}}));
  }
  return Value::list(std::move(groups));
}

std::vector<FileJob> optimizer_jobs(const LiveState& live,
                                    const trainer::NeuronZero1Optimizer& optimizer, double lr,
                                    const FilePlace& place, const FileOptions& options) {
  const RankPlace& rank = place.place;
  const bool zero1 = rank.zero1;
  if (zero1 && options.zero1_dcp) return dcp_optimizer_jobs(live, optimizer, lr, place);
  JobBuilder builder(zero1 ? optimizer_file(rank.shard_rank(), rank.tp_rank, place.pp_rank)
                           : optimizer_file(0, rank.tp_rank, place.pp_rank, ep_of(rank)),
                     place.state_copies, options);
  const int shards = zero1 ? rank.shards() : 1;
  std::map<std::string, ById> folders;
  folders[kBaseState];
  for (const LiveTensor& tensor : live.optimizer) {
    const std::string folder = folder_of(tensor.state);
    const bool nested = folder == kBaseState;
    std::vector<PathKey> path{folder, tensor.id};
    if (nested) path.emplace_back(tensor.state);
    const Value value =
        builder.add(tensor.values, path, tensor.parts, {shards, rank.ep_rank, tensor.of_experts});
    Value& of_id = folders[folder].of(tensor.id);
    if (nested && of_id.is_none()) of_id = Value::dict();
    nested ? of_id.set(tensor.state, value) : static_cast<void>(of_id = value);
  }
  const at::Tensor step = at::full({}, static_cast<double>(optimizer.steps()), at::kFloat);
  Value step_value;
  for (const LiveTensor* tensor : trained_weights(live, optimizer)) {
    if (step_value.is_none() || options.steps_by_parameter)
      step_value = builder.add(step, {"step"}, {}, {});
    Value& state = folders[kBaseState].of(tensor->id);
    if (state.is_none()) state = Value::dict();
    state.set("step", step_value);
  }
  std::vector<std::pair<Value, Value>> root{{"state", Value::dict()},
                                            {"shape_info", shape_info_of(live, optimizer)},
                                            {"param_groups", param_groups_of(live, optimizer, lr)}};
  for (const auto& [folder, values] : folders) root.emplace_back(folder, values.value());
  return builder.finish(Value::dict(std::move(root)));
}

std::set<std::string> weights_with_masters(const LiveState& live,
                                           const trainer::NeuronZero1Optimizer& optimizer) {
  std::set<std::string> names;
  const bool has_masters = std::ranges::any_of(
      live.optimizer, [](const LiveTensor& tensor) { return tensor.state == kMasterState; });
  if (!has_masters) return names;
  // This rank's shards may have no rows of a parameter of which another one has masters.
  optimizer.for_each_slot(
      [&](const trainer::ShardSlot& slot) { names.insert(slot.parameter->name); });
  return names;
}

std::vector<FileJob> dict_jobs(const std::string& path,
                               const std::map<std::string, TensorDict>& dicts,
                               const std::map<std::string, Value>& values, std::vector<int> holders,
                               const FileOptions& options) {
  JobBuilder builder(path, std::move(holders), options);
  std::vector<std::pair<Value, Value>> root;
  for (const auto& [name, tensors] : dicts) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, tensor] : tensors)
      items.emplace_back(key, builder.add(as_saved(tensor, options), {}, {}, {}));
    if (name.empty()) {
      std::ranges::move(items, std::back_inserter(root));
    } else {
      root.emplace_back(name, Value::ordered_dict(std::move(items)));
    }
  }
  for (const auto& [name, value] : values) root.emplace_back(name, value);
  return builder.finish(Value::ordered_dict(std::move(root)));
}

StoredFile write_job(Storage& storage, const std::string& folder, const FileJob& job,
                     Durability durability) {
  auto result = std::make_shared<HashingFile::Result>();
  TorchFileWriter writer(std::make_unique<HashingFile>(
      storage.create(join_path(folder, job.path), durability), result));
  for (const at::Tensor& tensor : job.tensors) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    writer.add_tensor({.dtype = dtype_of(host.scalar_type()), .shape = host.sizes().vec()},
                      {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  writer.finish(job.root);
  return result->stored();
}

WriteBox values_of(const FileJob& job) {
  return [&job](DcpFileWriter& file, const ChunkJob& chunk) {
    for (std::size_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      const at::Tensor host = job.tensors[i].detach().cpu().contiguous();
      file.write({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
    }
  };
}

WrittenChunk write_chunk(DcpFileWriter& file, const ChunkJob& chunk, const WriteBox& write) {
  file.begin_chunk({.dtype = chunk.meta.dtype, .shape = chunk.box.sizes});
  write(file, chunk);
  WrittenChunk written{chunk.key, chunk.meta, chunk.box};
  written.box.place = file.end_chunk();
  return written;
}

void write_chunks(Storage& storage, const std::string& folder, const FileJob& job,
                  const WriteBox& write, Written& written) {
  if (!job.problem.empty()) throw OutputError(job.problem);
  const std::string path = join_path(job.dcp_folder, job.path);
  auto result = std::make_shared<HashingFile::Result>();
  DcpFileWriter file(std::make_unique<HashingFile>(storage.create(join_path(folder, path)), result),
                     job.path);
  for (const ChunkJob& chunk : job.chunks)
    written.chunks.push_back(write_chunk(file, chunk, write));
  file.close();
  written.files[path] = result->stored();
}

StoredFile write_value(Storage& storage, const std::string& path, const Value& value) {
  return write_job(storage, "", {path, value, {}, {}, {}});
}

}  // namespace trellis::checkpoint::native
