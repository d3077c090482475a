#include "sim/collectives/hierarchical.h"

#include <algorithm>

#include "base/check.h"
#include "sim/collectives/ring.h"

namespace trellis::sim {
namespace {

/// Member (node, local) owns chunk node * locals + local of the buffer.
struct Grid {
  int nodes;
  int locals;
  std::int64_t elements;

  [[nodiscard]] Chunk chunk(int node, int local) const { return chunk_range(elements, nodes * locals, node * locals + local); }

  /// The ring inside a node: a member stands for the chunks of its local index on every node.
  [[nodiscard]] Ring inside(int node) const {
    Ring ring;
    for (int local = 0; local < locals; ++local) {
      ring.members.push_back(node * locals + local);
      auto& owned = ring.owned.emplace_back();
      for (int other = 0; other < nodes; ++other) owned.push_back(chunk(other, local));
    }
    return ring;
  }

  /// The ring of one local index over the nodes.
  [[nodiscard]] Ring across(int local) const {
    Ring ring;
    for (int node = 0; node < nodes; ++node) {
      ring.members.push_back(node * locals + local);
      ring.owned.push_back({chunk(node, local)});
    }
    return ring;
  }
};

int append_scatter_stages(CommPlan& plan, const Grid& grid, int round) {
  for (int node = 0; node < grid.nodes; ++node) append_reduce_scatter(plan, grid.inside(node), round);
  round += grid.locals - 1;
  for (int local = 0; local < grid.locals; ++local) append_reduce_scatter(plan, grid.across(local), round);
  return round + grid.nodes - 1;
}

void append_gather_stages(CommPlan& plan, const Grid& grid, int round) {
  for (int local = 0; local < grid.locals; ++local) append_all_gather(plan, grid.across(local), round);
  round += grid.nodes - 1;
  for (int node = 0; node < grid.nodes; ++node) append_all_gather(plan, grid.inside(node), round);
}

}  // namespace

CommPlan hierarchical_plan(CollectiveKind kind, int nodes, int members_per_node, std::int64_t elements) {
  CommPlan plan{kind, nodes * members_per_node, elements, {}};
  const Grid grid{nodes, members_per_node, elements};
  switch (kind) {
    case CollectiveKind::kAllReduce: append_gather_stages(plan, grid, append_scatter_stages(plan, grid, 0)); break;
    case CollectiveKind::kReduceScatter: append_scatter_stages(plan, grid, 0); break;
    case CollectiveKind::kAllGather: append_gather_stages(plan, grid, 0); break;
    default: TRELLIS_CHECK(false, "only reductions and gathers have a hierarchical form");
  }
  // Rings of one stage were appended one after the other: bring them into rounds.
  std::stable_sort(plan.steps.begin(), plan.steps.end(), [](const PlanStep& a, const PlanStep& b) { return a.round < b.round; });
  return plan;
}

}  // namespace trellis::sim
