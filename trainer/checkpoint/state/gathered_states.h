#pragma once

#include <functional>
#include <vector>

#include "trainer/checkpoint/state/live_state.h"

/// Megatron-core's dp_zero_gather_scatter: the first data-parallel rank of each model-parallel
/// place gets ZeRO-1's states whole and alone writes them.
namespace trellis::checkpoint {

/// All members' shards of a state, concatenated along dimension 0, for the first member of the
/// group; undefined for the others.
using GatherShards =
    std::function<at::Tensor(const at::Tensor& shard, const trainer::ParallelGroup& group)>;
/// Collective; the result is in host memory.
[[nodiscard]] at::Tensor gather_shards(const at::Tensor& shard,
                                       const trainer::ParallelGroup& group);
/// Its shape alone; no one communicates.
[[nodiscard]] at::Tensor plan_gather(const at::Tensor& shard, const trainer::ParallelGroup& group);

/// The states that a rank has then: whole ones on first ranks, none on others. REQUIRES: `states`
/// are of ZeRO-1, the same ones on all ranks of a group.
[[nodiscard]] std::vector<LiveTensor> gathered_states(const trainer::ParameterList& parameters,
                                                      const std::vector<LiveTensor>& states,
                                                      const trainer::ParallelState& parallel,
                                                      const GatherShards& gather);
/// True if the rank receives the gathered states.
[[nodiscard]] bool is_first_of_states(const trainer::ParallelState& parallel);

}  // namespace trellis::checkpoint
