#pragma once

#include <cstdint>
#include <span>

#include "sim/isa/program.h"

namespace trellis::sim::isa {

/// First and last element that an operand can touch inside one partition (HBM: inside the buffer).
struct Extent {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Over the free dimensions and, in HBM, the partitions; loops and rotation are at their start.
[[nodiscard]] Extent tile_extent(const AccessPattern& operand, MemorySpace space);

/// As tile_extent, over every iteration of the enclosing loops (outermost first) and every ring
/// position.
[[nodiscard]] Extent full_extent(const AccessPattern& operand, MemorySpace space,
                                 std::span<const std::int64_t> loop_counts);

}  // namespace trellis::sim::isa
