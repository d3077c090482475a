#pragma once

#include <cstdint>
#include <vector>

#include "sim/collectives/plan.h"

namespace trellis::sim {

struct Chunk {
  std::int64_t begin = 0;
  std::int64_t length = 0;
};

/// Part `index` of `elements` cut into `parts` as evenly as possible; the first parts are the longer ones.
[[nodiscard]] Chunk chunk_range(std::int64_t elements, int parts, int index);

/// Members in ring order and what each of them owns of the buffer. Each piece is cut in two: one half travels each way round, so that
/// both directions of every link work (two members have one way only).
struct Ring {
  std::vector<int> members;
  std::vector<std::vector<Chunk>> owned;  ///< by position in `members`
};

/// Afterwards each member holds the sum of what it owns. Takes members − 1 rounds from `first_round`.
void append_reduce_scatter(CommPlan& plan, const Ring& ring, int first_round);

/// Before: each member holds what it owns. Afterwards all hold all. Takes members − 1 rounds from `first_round`.
void append_all_gather(CommPlan& plan, const Ring& ring, int first_round);

}  // namespace trellis::sim
