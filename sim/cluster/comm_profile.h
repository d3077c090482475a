#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster/topology.h"
#include "sim/collectives/plan.h"
#include "sim/sim.h"

namespace trellis::sim {

/// A stretch of a communication: some rounds of its plan, summed up.
struct CommPhase {
  struct Load {
    LinkId link = 0;
    std::int64_t bytes = 0;
  };
  std::int64_t alone = 0;    ///< picoseconds when no one else uses the links
  std::vector<Load> loads;   ///< by link
};

/// What a communication asks of the links. Rounds follow each other: each lasts as long as its slowest message and its busiest link.
/// Consecutive rounds are summed into a few phases, which is where other communications can come in between.
struct CommProfile {
  std::vector<CommPhase> phases;
  std::int64_t wire_bytes = 0;  ///< over all links
};

/// `cores`: global core of each member, in the plan's order.
[[nodiscard]] CommProfile profile_plan(const CommPlan& plan, const std::vector<int>& cores, int element_bytes, const Topology& topology);

/// The plan for a communication of `cores` (sorted): hierarchical where they lie evenly on several instances, a ring otherwise.
[[nodiscard]] CommPlan plan_for(CollectiveKind kind, const std::vector<int>& cores, std::int64_t elements, const Topology& topology);

}  // namespace trellis::sim
