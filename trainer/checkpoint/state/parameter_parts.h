#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/files/checkpoint/sharding/sharded_tensor.h"
#include "trainer/optimizer/update_rule.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::checkpoint {

/// The position of a rank among those that hold parts or copies.
struct RankPlace {
  int tp_rank = 0, tp_size = 1;
  int dp_rank = 0, dp_size = 1;
  bool zero1 = false;            ///< optimizer states are split over DP
  int ep_rank = 0, ep_size = 1;  ///< experts; lies within DP
  int edp_rank = 0;              ///< among the ranks that hold the same experts
  int copies = 1;                ///< of fully sharded states: DP is cut into as many parts

  /// The ranks that share out the states of a copy, and which of them this one is.
  [[nodiscard]] int shards() const { return dp_size / copies; }
  [[nodiscard]] int shard_rank() const { return dp_rank % shards(); }
  /// The number of this rank's copy of a parameter, over DP.
  [[nodiscard]] int copy_of(const trainer::Parameter& parameter) const {
    return parameter.experts.is_stacked() ? edp_rank : dp_rank;
  }
};

/// The part of a rank's parameter that a tensor covers, and the tensor's extent.
struct ParameterSpan {
  std::int64_t first_row = 0, rows = 0;  ///< of dimension 0 of this rank's parameter
  trainer::StateExtent extent = trainer::StateExtent::kElements;
};

/// The parts of the layout-independent weights that the elements of `span` are: boxes that do not
/// depend on TP, PP, VPP, DP, ZeRO-1 or the copies of key/value heads. Fused projections are the
/// separate ones of the un-fused model: weight_qkv is q_proj, k_proj and v_proj; gate_up_proj is
/// gate_proj and up_proj. Experts are stacked in one tensor, in their order: EP is a cut of its
/// dimension 0. Rows of padding belong to no box. `prefix` precedes each key; `dp_copy`: the number
/// of this copy among the equal copies over DP.
/// over DP this is.
///
///   TP 2, rank 1, gate_up_proj [4, h] of rows 2 3 | 6 7:
///     gate_proj rows 2–3 ← local rows 0–1      up_proj rows 2–3 ← local rows 2–3
[[nodiscard]] std::vector<ShardedPart> parts_of(const trainer::Parameter& parameter,
                                                const ParameterSpan& span, const RankPlace& place,
                                                int dp_copy, DType dtype,
                                                const std::string& prefix);

}  // namespace trellis::checkpoint
