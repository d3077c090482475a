#pragma once

#include <cstdint>
#include <vector>

#include "traces/timeline.h"

namespace trellis::traces {

/// One edge of a slice as it is drawn.
struct SliceEdge {
  std::uint64_t slice = 0;
  bool begin = false;
  Picoseconds at;
};

/// The slices of every track as properly nested begin and end edges, in the order of time;
/// result[t] is track t's. A slice that crosses the end of an earlier one is drawn from that end on
/// (its exact start stays in the timeline):
/// An open slice has no end edge.
///   A ▇▇▇▇▇▇        A ▇▇▇▇▇▇
///   B    ▇▇▇▇▇▇  →  B       ▇▇▇
[[nodiscard]] std::vector<std::vector<SliceEdge>> nested_edges(const Timeline& timeline);

}  // namespace trellis::traces
