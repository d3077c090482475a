#pragma once

#include <string>

#include "sim/collectives/algorithm.h"
#include "sim/collectives/layout.h"
#include "sim/collectives/stage.h"

namespace trellis::sim {

/// Why a group that lies so cannot run the algorithm for this kind, and what to do; "" when it can.
[[nodiscard]] std::string why_unavailable(Algorithm algorithm, CollectiveKind kind,
                                          const GroupLayout& layout);

/// The plan of a collective in compact form; members, elements and results as in ring_plan.
/// REQUIRES: the algorithm is available, and also the stages of a hierarchical one inside a
/// node.
[[nodiscard]] PlanOutline make_outline(CollectiveKind kind, const AlgorithmChoice& choice,
                                       const GroupLayout& layout, std::int64_t elements);

/// The members of one node as a separate group. REQUIRES: members_per_node() > 0.
[[nodiscard]] GroupLayout inside_one_node(const GroupLayout& layout);

}  // namespace trellis::sim
