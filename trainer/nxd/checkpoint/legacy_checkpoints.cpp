#include "trainer/nxd/checkpoint/legacy_checkpoints.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include "base/error.h"
#include "trainer/checkpoint/engine/rank_state_file.h"
#include "trainer/checkpoint/state/shared_load.h"
#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/full/full_source.h"
#include "trainer/files/checkpoint/formats/native/file_names.h"
#include "trainer/files/checkpoint/formats/nxd/nxd_folder.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/nxd/rank_files.h"

namespace trellis::trainer::legacy {
namespace {

using checkpoint::Box;
using checkpoint::LiveState;
using checkpoint::LiveTensor;
using checkpoint::Place;
using checkpoint::TensorEntry;
using checkpoint::Value;
using checkpoint::native::FileJob;
using checkpoint::native::RankStateFile;
using checkpoint::native::TensorDict;

/// `at_a_time` ranks do it together; 0: all.
void in_waves(runtime::RankContext& rank, int at_a_time, const std::function<void()>& body) {
  const int wave = at_a_time > 0 ? at_a_time : rank.world_size();
  for (int first = 0; first < rank.world_size(); first += wave) {
    if (rank.rank() >= first && rank.rank() < first + wave) body();
    rank.host_barrier(checkpoint::kStorageTimeout);
  }
}

std::string rank_name(const ParallelState& parallel, bool master_dp_only) {
  std::string name =
      fmt::format("tp_rank_{:02}_pp_rank_{:02}", parallel.get_tensor_model_parallel_rank(),
                  parallel.get_pipeline_model_parallel_rank());
  if (!master_dp_only) name += fmt::format("_dp_rank_{:02}", parallel.get_data_parallel_rank());
  return name;
}

std::string file_name(const std::string& rank_name, bool xser) {
  return xser ? rank_name : rank_name + "/checkpoint.pt";
}

void check_kind(checkpoint::Storage& storage, const std::string& name, bool xser) {
  if (storage.exists(file_name(name, xser)) && (!xser || storage.exists(name + ".tensors"))) return;
  const bool is_other = storage.exists(file_name(name, !xser));
  throw ConfigError(storage.address() + "/" + file_name(name, xser) + ": is missing" +
                    (is_other ? std::string("; it was saved ") + (xser ? "without" : "with") +
                                    " xser: load it with load_xser " + (xser ? "false" : "true")
                              : "; correct the folder, or load with the layout of the save"));
}

Checkpoint content_of(const RankStateFile& file) {
  Checkpoint content;
  for (const auto& [key, value] : file.root().as_dict()) {
    if (!key.is_string()) continue;
    TensorDict tensors;
    if (value.is_dict()) tensors = file.tensors(value);
    if (tensors.empty()) {
      content.values[key.as_string()] = value;
    } else {
      content.states[key.as_string()] = std::move(tensors);
    }
  }
  return content;
}

/// This rank's part of a whole weight.
void fill_part(const checkpoint::TensorSource& source, const TensorEntry& entry,
               const LiveTensor& into, const checkpoint::ShardedPart& part) {
  at::Tensor values =
      at::empty(part.tensor.local_shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)));
  source.read(entry, {part.tensor.global_offset, part.tensor.local_shape},
              {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  checkpoint::box_of(into.values, part.local.offset, part.local.shape).copy_(values);
}

void check_whole(const checkpoint::TensorSource& source, const LiveState& live,
                 const NxDModel& model, bool strict) {
  Problems problems;
  std::map<std::string, checkpoint::Shape> shapes;
  for (const TensorEntry& entry : source.tensors()) shapes[entry.key] = entry.shape;
  std::set<std::string> own;
  for (const LiveTensor& tensor : live.model) {
    for (const auto& part : tensor.parts) {
      own.insert(part.tensor.key);
      const auto found = shapes.find(part.tensor.key);
      if (found == shapes.end()) {
        if (strict) problems.add(source.address(), "has no " + part.tensor.key);
      } else if (found->second != part.tensor.global_shape) {
        problems.add(source.address(), part.tensor.key + ": expected the shape " +
                                           checkpoint::text_of(part.tensor.global_shape) +
                                           ", got " + checkpoint::text_of(found->second));
      }
    }
  }
  for (const auto& [key, shape] : shapes) {
    const bool is_elsewhere = model.knows_layer_of(key) && !model.has_layer_of(key);
    if (strict && !is_elsewhere && !own.contains(key))
      problems.add(source.address(), key + ": unexpected: the model has no such weight");
  }
  problems.throw_if_any();
}

void load_whole(const Place& place, const NxDModel& model, const std::string& key, bool strict) {
  const checkpoint::full::FullSource source(place, key);
  const LiveState live = live_state_of(model, nullptr);
  check_whole(source, live, model, strict);
  for (const LiveTensor& tensor : live.model) {
    for (const auto& part : tensor.parts) {
      const auto entry = std::ranges::find(source.tensors(), part.tensor.key, &TensorEntry::key);
      if (entry != source.tensors().end()) fill_part(source, *entry, tensor, part);
    }
  }
}

std::string optimizer_name(const ParallelState& parallel) {
  if (parallel.get_pipeline_model_parallel_size() > 1)
    throw ConfigError(
        "sharded_state_dict: names of files have no pipeline rank: expected "
        "pipeline_parallel_size 1, got " +
        std::to_string(parallel.get_pipeline_model_parallel_size()) +
        "; use NxDCheckpoints::save_checkpoint");
  return fmt::format("optim.dp_rank_{:02}.tp_rank_{:02}", parallel.get_data_parallel_rank(),
                     parallel.get_tensor_model_parallel_rank());
}

/// NxD's dict of this rank's optimizer, one file.
FileJob optimizer_job(runtime::RankContext& rank, const NxDModel& model,
                      const NeuronZero1Optimizer& optimizer, double lr) {
  FileJob job = checkpoint::native::optimizer_jobs(
                    live_state_of(model, &optimizer), optimizer, lr,
                    file_place(model.parallel(), rank.rank(), optimizer.is_sharded()), {})
                    .front();
  job.path = optimizer_name(model.parallel());
  return job;
}

/// Copies each tensor of `file` to the one at the same place of ours. Returns the number of steps.
class OptimizerFill {
 public:
  OptimizerFill(const RankStateFile& file, const std::vector<at::Tensor>& ours)
      : file_(file), ours_(ours) {}
  void fill(const Value& ours, const Value& theirs, const std::string& where) {
    for (const auto& [key, value] : ours.as_dict()) {
      const std::string name = where + "/" + key.text();
      if (!value.is_tensor() && !value.is_dict()) continue;
      const Value* found = theirs.find(key);
      if (found == nullptr) {
        problems_.add(file_.name(), "has no " + name.substr(1));
      } else if (value.is_dict()) {
        fill(value, *found, name);
      } else {
        take(ours_[static_cast<std::size_t>(value.as_tensor())], file_.tensor(*found), name);
        if (key.is_string() && key.as_string() == "step")
          steps_ = static_cast<std::int64_t>(file_.tensor(*found).item<double>());
      }
    }
  }
  [[nodiscard]] std::int64_t steps() const {
    problems_.throw_if_any();
    return steps_;
  }

 private:
  void take(const at::Tensor& into, const at::Tensor& from, const std::string& name) {
    if (from.sizes() == into.sizes()) {
      into.copy_(from);
    } else {
      problems_.add(file_.name(), name.substr(1) + ": expected the shape " +
                                      checkpoint::text_of(into.sizes().vec()) + ", got " +
                                      checkpoint::text_of(from.sizes().vec()));
    }
  }
  const RankStateFile& file_;
  const std::vector<at::Tensor>& ours_;
  Problems problems_;
  std::int64_t steps_ = 0;
};

/// Fills the optimizer's states; returns its number of steps.
std::int64_t fill_from_shard(runtime::RankContext& rank, const NxDModel& model,
                             const NeuronZero1Optimizer& optimizer,
                             const std::shared_ptr<checkpoint::Storage>& output_dir,
                             int num_workers_per_step) {
  const at::NoGradGuard no_grad;
  if (num_workers_per_step < 1)
    throw ConfigError("load_sharded_state_dict: num_workers_per_step: expected 1 or more, got " +
                      std::to_string(num_workers_per_step));
  const FileJob job = optimizer_job(rank, model, optimizer, /*lr=*/0);
  std::int64_t steps = 0;
  in_waves(rank, num_workers_per_step, [&] {
    const RankStateFile file({output_dir, ""}, job.path);
    OptimizerFill fill(file, job.tensors);
    fill.fill(job.root, file.root(), "");
    steps = fill.steps();
  });
  return steps;
}

NxDModel* model_of(const LoadArguments& arguments) {
  auto* const* given = std::get_if<NxDModel*>(&arguments.model_or_optimizer);
  const bool has_other = !std::holds_alternative<std::monostate>(arguments.model_or_optimizer);
  if (arguments.model != nullptr && has_other)
    throw ConfigError("load: model and model_or_optimizer are the same: expected one of them");
  return given != nullptr ? *given : arguments.model;
}

TensorDict state_dict_of(const RankStateFile& file, const Checkpoint& content,
                         const std::string& key) {
  if (key.empty()) return file.tensors(file.root());
  const auto found = content.states.find(key);
  if (found == content.states.end())
    throw ConfigError(file.name() + ": has no state dict '" + key + "'; name another model_key");
  return found->second;
}

void save_alone(runtime::RankContext& rank, const ParallelState& parallel,
                const Checkpoint& checkpoint, checkpoint::Storage& output_dir,
                const SaveArguments& arguments) {
  const at::NoGradGuard no_grad;
  const std::string path =
      file_name(rank_name(parallel, arguments.master_dp_only), arguments.save_xser);
  const auto jobs = checkpoint::native::dict_jobs(
      path, checkpoint.states, checkpoint.values, {rank.rank()},
      {.use_xser = arguments.save_xser, .save_bf16 = arguments.down_cast_bf16});
  const bool writes = !arguments.master_dp_only || parallel.get_data_parallel_rank() == 0;
  in_waves(rank, arguments.save_serially ? 1 : 0, [&] {
    for (const FileJob& job : jobs) {
      // This interface has no info files.
      if (writes && job.path != checkpoint::native::xser_info_file(path))
        (void)checkpoint::native::write_job(output_dir, "", job);
    }
  });
}

Checkpoint load_alone(runtime::RankContext& rank, const ParallelState& parallel,
                      const std::shared_ptr<checkpoint::Storage>& output_dir,
                      const LoadArguments& arguments) {
  const at::NoGradGuard no_grad;
  NxDModel* const model = model_of(arguments);
  auto* const* optimizer = std::get_if<NxDOptimizer*>(&arguments.model_or_optimizer);
  if (!arguments.sharded) {
    if (model == nullptr)
      throw ConfigError("load: sharded false: expected a model, which says what a rank takes");
    load_whole({output_dir, ""}, *model, arguments.model_key, arguments.strict);
    rank.host_barrier(checkpoint::kStorageTimeout);
    return {};
  }
  const std::string name = rank_name(parallel, arguments.master_dp_only);
  check_kind(*output_dir, name, arguments.load_xser);
  const RankStateFile file({output_dir, ""}, file_name(name, arguments.load_xser),
                           checkpoint::nxd::known_classes());
  Checkpoint content = content_of(file);
  if (model != nullptr)
    (void)model->load_state_dict(state_dict_of(file, content, arguments.model_key),
                                 arguments.strict);
  if (optimizer != nullptr && *optimizer != nullptr)
    (*optimizer)->load_state_dict(state_dict_of(file, content, arguments.model_key));
  rank.host_barrier(checkpoint::kStorageTimeout);
  return content;
}

}  // namespace

void save(runtime::RankContext& rank, const ParallelState& parallel, const Checkpoint& checkpoint,
          checkpoint::Storage& output_dir, const SaveArguments& arguments) {
  rank.together([&] { save_alone(rank, parallel, checkpoint, output_dir, arguments); });
}

Checkpoint load(runtime::RankContext& rank, const ParallelState& parallel,
                const std::shared_ptr<checkpoint::Storage>& output_dir,
                const LoadArguments& arguments) {
  Checkpoint content;
  rank.together([&] { content = load_alone(rank, parallel, output_dir, arguments); });
  return content;
}

void save_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             const NeuronZero1Optimizer& optimizer, double lr,
                             checkpoint::Storage& output_dir, bool save_serially) {
  const at::NoGradGuard no_grad;
  rank.together([&] {
    const FileJob job = optimizer_job(rank, model, optimizer, lr);
    in_waves(rank, save_serially ? 1 : 0,
             [&] { (void)checkpoint::native::write_job(output_dir, "", job); });
  });
}

void save_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             const NxDOptimizer& optimizer, checkpoint::Storage& output_dir,
                             bool save_serially) {
  save_sharded_state_dict(rank, model, optimizer.zero1_optimizer(), optimizer.lr(), output_dir,
                          save_serially);
}

void load_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             NxDOptimizer& optimizer,
                             const std::shared_ptr<checkpoint::Storage>& output_dir,
                             int num_workers_per_step) {
  rank.together([&] {
    optimizer.continue_after(fill_from_shard(rank, model, optimizer.zero1_optimizer(), output_dir,
                                             num_workers_per_step));
  });
}

void load_sharded_state_dict(runtime::RankContext& rank, const NxDModel& model,
                             NeuronZero1Optimizer& optimizer,
                             const std::shared_ptr<checkpoint::Storage>& output_dir,
                             int num_workers_per_step) {
  rank.together([&] {
    const std::int64_t steps =
        fill_from_shard(rank, model, optimizer, output_dir, num_workers_per_step);
    optimizer.continue_after(steps);
    model.position()->step = steps;
  });
}

}  // namespace trellis::trainer::legacy
