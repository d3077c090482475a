#include "trainer/checkpoint/training/planned_checkpoints.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "runtime/ranks/world.h"
#include "trainer/checkpoint/engine/state_files.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/training/save_options.h"
#include "trainer/files/checkpoint/plan/transfer_plan.h"
#include "trainer/loop/trainer.h"

namespace trellis::checkpoint {
namespace {

std::int64_t bytes_of(const at::Tensor& tensor, bool as_bf16 = false) {
  const auto each = as_bf16 && tensor.is_floating_point()
                        ? std::int64_t{2}
                        : static_cast<std::int64_t>(tensor.element_size());
  return tensor.numel() * each;
}

trainer::RankMesh mesh_of(const trainer::RunConfig& config) {
  return trainer::make_rank_mesh(trainer::parallel_sizes(config), config.world_size());
}

/// Index of a class with the same files; adds one.
int class_of(sim::CheckpointPlan& plan, sim::RankFiles files) {
  const auto found = std::ranges::find(plan.classes, files);
  const auto index = static_cast<int>(found - plan.classes.begin());
  if (found == plan.classes.end()) plan.classes.push_back(std::move(files));
  return index;
}

}  // namespace

PlannedCheckpoints::PlannedCheckpoints(const trainer::RunConfig& config)
    : config_(config),
      save_bf16_(config.exp_manager.checkpoints.save_bf16),
      ranks_(static_cast<std::size_t>(config.world_size())) {
  config_.exp_manager.checkpoints.save_bf16 = false;
}

std::int64_t PlannedCheckpoints::consumed_samples(std::int64_t step) const {
  return step * config_.data.global_batch_size;
}

void PlannedCheckpoints::after_step(const trainer::TrainingState& state,
                                    const trainer::StepResult&) {
  Rank& own = ranks_[static_cast<std::size_t>(state.rank.rank())];
  if (own.files.empty()) own = rank_of(state);
}

PlannedCheckpoints::Rank PlannedCheckpoints::rank_of(const trainer::TrainingState& state) const {
  const native::RankContent content{
      state.parameters, state.optimizer, state.parallel,
      live_state(state.parameters, state.optimizer, state.parallel),
      native::file_place_of(mesh_of(config_), state.parallel, state.rank.rank(),
                            state.optimizer.is_sharded())};
  const LiveState& live = content.live;
  Rank rank;
  for (const native::FileJob& job : checkpoint_jobs(config_, content, {.gather = plan_gather})) {
    const bool is_model = job.path.starts_with("model/");
    File file;
    file.shared = job.holders.size() > 1;
    file.gathered = !is_model && gathers_states(config_);
    file.tensors = static_cast<std::int64_t>(job.tensors.size());
    for (const at::Tensor& tensor : job.tensors) {
      const std::int64_t bytes = bytes_of(tensor, is_model && save_bf16_);
      file.bytes += bytes;
      file.largest_tensor = std::max(file.largest_tensor, bytes);
    }
    rank.files.push_back(file);
  }
  if (gathers_states(config_)) {
    for (const LiveTensor& tensor : live.optimizer) {
      const trainer::StateExtent extent = tensor.span.extent;
      if (extent != trainer::StateExtent::kElements && extent != trainer::StateExtent::kRows)
        continue;
      sim::StateGather& gather = tensor.of_experts ? rank.experts : rank.dense;
      gather.bytes += bytes_of(tensor.values) / tensor.values.size(0) * tensor.span.rows;
      ++gather.tensors;
    }
  }
  for (const auto* tensors : {&live.model, &live.optimizer}) {
    for (const LiveTensor& tensor : *tensors) rank.state_bytes += bytes_of(tensor.values);
    rank.state_tensors += static_cast<std::int64_t>(tensors->size());
  }
  return rank;
}

/// Files of a group of copies: its shared files are distributed as Saver distributes them. No file
/// is shared with a rank of another group.
std::vector<sim::RankFiles> PlannedCheckpoints::shared_out(
    const std::vector<const Rank*>& group) const {
  const auto id_of = [](std::size_t rank, std::size_t file) {
    return std::to_string(rank) + "/" + std::to_string(file);
  };
  std::vector<int> all(config_.model.dist_ckpt.parallel_save ? group.size() : 1);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  std::vector<Transfer> transfers;
  std::map<std::string, const File*> files;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    for (std::size_t i = 0; i < group[rank]->files.size(); ++i) {
      const File& file = group[rank]->files[i];
      if ((file.shared || file.gathered) && rank > 0) continue;
      const std::string id = id_of(rank, i);
      files.emplace(id, &file);
      transfers.push_back(
          {id, file.bytes,
           file.shared && !file.gathered ? all : std::vector{static_cast<int>(rank)}, false});
    }
  }
  std::vector<sim::RankFiles> shares(group.size());
  const auto read = [](const File& file, std::int64_t bytes, sim::RankFiles& share) {
    share.read_bytes += bytes;
    share.read_files += file.tensors > 0 ? 1 : 0;
  };
  for (const TransferPlan::Item& item : distribute(std::move(transfers)).items) {
    sim::RankFiles& share = shares[static_cast<std::size_t>(item.rank)];
    const File& file = *files.at(item.id);
    share.files.push_back(file.bytes);
    share.tensors += file.tensors;
    share.largest_tensor = std::max(share.largest_tensor, file.largest_tensor);
    if (!file.gathered) read(file, file.bytes, share);
  }
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    sim::RankFiles& share = shares[rank];
    std::ranges::sort(share.files, std::greater<>());
    share.state_bytes = group[rank]->state_bytes;
    share.state_tensors = group[rank]->state_tensors;
    const bool shares_reads = config_.model.dist_ckpt.parallel_load;
    if (!shares_reads) {
      share.read_bytes = share.read_files = 0;
      for (const File& file : group[rank]->files) {
        if (!file.gathered) read(file, file.bytes, share);
      }
    }
    // All ranks need a part of each tensor of a file with whole states.
    for (const File& file : group.front()->files) {
      if (file.gathered)
        read(file, shares_reads ? file.bytes / std::ssize(group) : file.bytes, share);
    }
  }
  return shares;
}

void PlannedCheckpoints::add_gathers(const std::vector<int>& represented_by,
                                     sim::CheckpointPlan& plan) const {
  const trainer::RankMesh mesh = mesh_of(config_);
  for (int rank = 0; rank < config_.world_size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const Rank& like =
        ranks_[represented_by.empty() ? at : static_cast<std::size_t>(represented_by[at])];
    for (const auto& [states, axis] :
         {std::pair(like.dense, trainer::ParallelAxis::kFsdpSharding),
          {like.experts, trainer::ParallelAxis::kExpertFsdpSharding}}) {
      const int to = mesh.ranks(axis, rank).front();
      if (to != rank && states.bytes > 0)
        plan.gathers.push_back({rank, to, states.bytes, states.tensors});
    }
  }
}

sim::CheckpointPlan PlannedCheckpoints::plan(const std::vector<int>& represented_by) const {
  const trainer::CheckpointSection& section = config_.exp_manager.checkpoints;
  sim::CheckpointPlan plan;
  plan.asynchronous = section.async;
  plan.fully_parallel = section.save_xser;
  if (section.async_buffer_gib) plan.buffer = trellis::Bytes(save_options(config_).buffer_bytes);
  plan.class_of.assign(ranks_.size(), 0);
  std::map<std::vector<const Rank*>, std::vector<int>> classes;  // of groups that are equal
  const trainer::RankMesh mesh = mesh_of(config_);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::vector<int> members =
        mesh.ranks(trainer::ParallelAxis::kExpertData, static_cast<int>(rank));
    if (members.front() != static_cast<int>(rank)) continue;
    std::vector<const Rank*> group;
    for (const int member : members) {
      const auto at = static_cast<std::size_t>(member);
      group.push_back(
          &ranks_[represented_by.empty() ? at : static_cast<std::size_t>(represented_by[at])]);
    }
    auto [known, is_new] = classes.try_emplace(group);
    if (is_new) {
      for (sim::RankFiles& share : shared_out(group))
        known->second.push_back(class_of(plan, std::move(share)));
    }
    for (std::size_t i = 0; i < members.size(); ++i)
      plan.class_of[static_cast<std::size_t>(members[i])] = known->second[i];
  }
  if (gathers_states(config_)) add_gathers(represented_by, plan);
  return plan;
}

}  // namespace trellis::checkpoint
