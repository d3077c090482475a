#pragma once

#include "sim/collectives/algorithm.h"
#include "sim/collectives/plan.h"

namespace trellis::sim {

/// All-to-all, broadcast, transfer, permutation and the single-step all-reduce, step by step.
/// REQUIRES: at least two members.
[[nodiscard]] std::vector<PlanStep> steps_of(CollectiveKind kind, Algorithm algorithm, int members,
                                             std::int64_t elements);

}  // namespace trellis::sim
