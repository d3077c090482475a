#include "trainer/parallel_layers/parallel_state.h"

#include <algorithm>

#include <c10/util/StringUtil.h>

#include "runtime/ranks/world.h"

namespace trellis::trainer {
namespace {

ParallelGroup make_group(runtime::RankContext& rank, const char* axis,
                         const std::vector<int>& ranks) {
  ParallelGroup group;
  group.size = static_cast<int>(ranks.size());
  group.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank.rank()) - ranks.begin());
  if (group.size > 1) group.group = rank.new_group(axis, ranks);
  return group;
}

}  // namespace

ParallelState ParallelState::initialize_model_parallel(runtime::RankContext& rank, int tp, int pp) {
  return initialize_model_parallel(
      rank, {.tensor_model_parallel_size = tp, .pipeline_model_parallel_size = pp});
}

/// Axes that hold the same ranks share one group: what runs on them runs in one order anyway.
ParallelState ParallelState::initialize_model_parallel(runtime::RankContext& rank,
                                                       const ParallelSizes& sizes) {
  const RankMesh mesh = make_rank_mesh(sizes, rank.world_size());
  const auto group_of = [&](ParallelAxis axis) {
    return make_group(rank, name_of(axis), mesh.ranks(axis, rank.rank()));
  };
  ParallelGroup tensor = group_of(ParallelAxis::kTensor);
  ParallelGroup pipeline = group_of(ParallelAxis::kPipeline);
  ParallelState state(std::move(tensor), std::move(pipeline), group_of(ParallelAxis::kData));
  state.context_ = group_of(ParallelAxis::kContext);
  if (mesh.cp > 1) state.zero1_sharding_ = group_of(ParallelAxis::kZero1Sharding);
  if (mesh.ep > 1) state.expert_ = group_of(ParallelAxis::kExpert);
  state.expert_data_ = mesh.ep > 1 ? group_of(ParallelAxis::kExpertData) : state.zero1_sharding_;
  if (mesh.fsdp_replicas > 1) {
    state.fsdp_sharding_ = group_of(ParallelAxis::kFsdpSharding);
    state.expert_fsdp_sharding_ =
        mesh.ep > 1 ? group_of(ParallelAxis::kExpertFsdpSharding) : state.fsdp_sharding_;
    state.fsdp_replicas_ = group_of(ParallelAxis::kFsdpReplicas);
  }
  state.token_shuffle_ = make_group(
      rank, "shuffle", mesh.token_shuffle_ranks(rank.rank(), sizes.token_shuffle_group_size));
  state.kv_shared_ = make_group(
      rank, "kv",
      mesh.kv_shared_ranks(rank.rank(), sizes.kv_size_multiplier, sizes.kv_replica_order));
  state.kv_replica_order_ = sizes.kv_replica_order;
  state.global_rank_ = rank.rank();
  return state;
}

std::string ParallelState::rmsg(const std::string& message) const {
  return c10::str("[rank_", global_rank_, "_pp", pipeline_.rank, "_tp", tensor_.rank, "_dp",
                  data_.rank, "_cp", context_.rank, "] ", message);
}

}  // namespace trellis::trainer
