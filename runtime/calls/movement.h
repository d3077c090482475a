#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

#include "runtime/calls/comm_call.h"
#include "sim/collectives/plan.h"

namespace trellis::runtime {

/// A contiguous range of a member's working buffer and where its bytes are.
struct Piece {
  std::int64_t offset = 0;  ///< elements from the start of the working buffer
  std::int64_t length = 0;  ///< elements
  std::byte* data = nullptr;
};

/// One member's tensors laid out over the plan's working buffer, sorted by offset, without gaps
/// where data is read or written. Empty pieces: the member contributes or keeps nothing.
struct MemberBuffers {
  std::vector<Piece> inputs;
  std::vector<Piece> outputs;
};

/// Range [target, target + length) of the working buffer on every member of `to` becomes the
/// combination of the range at `source` on every member of `from`, in this order.
struct Delivery {
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t length = 0;
  std::vector<int> from;  ///< ascending: additions happen in member order
  std::vector<int> to;    ///< ascending
};

/// The result of a plan when its steps have been executed.
struct Movement {
  std::vector<Delivery> deliveries;
  std::vector<std::int64_t> sent;  ///< elements that each member sent in the plan's steps
};

/// Executes the steps of `plan` on sets of contributions instead of numbers: a step with
/// `reduce` unites the sets of its two ends, another one replaces. The numbers of a set are then
/// added in member order, each partial sum in their type: the result depends neither on where a
/// ring starts nor on how tensors are bucketed. Throws when a contribution would count twice.
/// `root`: the member that broadcasts; the plan is rotated so that its member 0 is the root.
[[nodiscard]] Movement execute_plan(const sim::CommPlan& plan, int root = 0);

/// An all-to-all with uneven splits, for which there is no plan: each member sends to each other
/// one directly. splits[i][j]: elements from i to j.
[[nodiscard]] Movement uneven_exchange(const std::vector<std::vector<std::int64_t>>& splits);

/// Moves the bytes of elements [begin, end) of all deliveries laid end to end. Distinct ranges may
/// run on distinct threads.
void move_bytes(const Movement& movement, const std::vector<const MemberBuffers*>& members,
                std::int64_t begin, std::int64_t end, c10::ScalarType dtype, Reduction reduction);

/// Elements of all deliveries.
[[nodiscard]] std::int64_t total_length(const Movement& movement);

}  // namespace trellis::runtime
