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

/// Ring algorithm. `elements`: all-reduce: the buffer; all-gather and reduce-scatter: the gathered
/// size (members × shard). Sizes that do not divide by the members are split as evenly as possible.
/// Contents of each member's buffer, chunk m being part m of it:
///   all-gather: chunk m before, everything after · reduce-scatter:
///     everything before, the sum of chunk m (in its place) after
///   all-to-all: block j for member j before; after, in the second buffer, block i from member i.
///     `elements` must divide by the members
///   broadcast: member 0 has the data · send/recv: member 0 to member 1 ·
///     barrier: an all-reduce of one element
///   permute: after, in the second buffer, what the member before had
[[nodiscard]] CommPlan ring_plan(CollectiveKind kind, int members, std::int64_t elements);

/// The members of one node as a separate group. REQUIRES: members_per_node() > 0.
[[nodiscard]] GroupLayout inside_one_node(const GroupLayout& layout);

}  // namespace trellis::sim
