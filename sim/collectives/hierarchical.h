#pragma once

#include "sim/collectives/plan.h"

namespace trellis::sim {

/// Collective over several nodes with equally many members on each; member = node * members_per_node + local index.
/// All-reduce: reduce-scatter inside each node, all-reduce of every chunk between the nodes, all-gather inside each node, so that
/// every rank's share of the network works. All-gather and reduce-scatter likewise in two stages. REQUIRES: one of these three kinds.
[[nodiscard]] CommPlan hierarchical_plan(CollectiveKind kind, int nodes, int members_per_node, std::int64_t elements);

}  // namespace trellis::sim
