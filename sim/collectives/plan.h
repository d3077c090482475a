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

/// Elements that each member sends; 2(n−1)/n·S for a ring all-reduce.
[[nodiscard]] std::vector<std::int64_t> elements_sent(const CommPlan& plan);

}  // namespace trellis::sim
