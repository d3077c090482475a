#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace trellis::sim {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSendRecv,
  kBarrier,
  kPermute
};
[[nodiscard]] std::string_view name(CollectiveKind);

/// One message of a collective: member `from` sends `length` elements at `source` of its working
/// buffer to member `to`, which adds them to (reduce) or stores them at `target`. A step may start
/// when every earlier step that wrote its source range at `from` is done.
struct PlanStep {
  std::int32_t round = 0;  ///< steps of one round are independent of each other
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t length = 0;
  bool reduce = false;
  bool fused = false;  ///< shares its read (copies) or its write (sums) with another step of the
                       ///< round: one read, two writes
  auto operator<=>(const PlanStep&) const = default;
};

/// A collective as data, step by step: it can be printed, counted and executed (runtime). Members
/// are positions in the group.
struct CommPlan {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int members = 1;
  std::int64_t elements = 0;  ///< of the working buffer on each member
  std::vector<PlanStep> steps;
  /// Sources lie in the first buffer, targets in a second one, where a member puts its own part
  /// itself.
  bool second_buffer = false;
};

/// Ring algorithm. `elements`: all-reduce: the buffer; all-gather and reduce-scatter: the gathered
/// size (members × shard). Sizes that do not divide by the members are split as evenly as possible.
/// What each member holds, chunk m being part m of the buffer:
///   all-gather: chunk m before, everything after · reduce-scatter:
///     everything before, the sum of chunk m (in its place) after
///   all-to-all: block j for member j before; after, in the second buffer, block i from member i.
///     `elements` must divide by the members
///   broadcast: member 0 has the data · send/recv: member 0 to member 1 ·
///     barrier: an all-reduce of one element
///   permute: after, in the second buffer, what the member before had
[[nodiscard]] CommPlan ring_plan(CollectiveKind kind, int members, std::int64_t elements);

/// Elements that each member sends; 2(n−1)/n·S for a ring all-reduce.
[[nodiscard]] std::vector<std::int64_t> elements_sent(const CommPlan& plan);

}  // namespace trellis::sim
