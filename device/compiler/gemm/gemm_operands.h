#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/compiler/emit/phase.h"

/// The operands of a matrix product on their way through the chip.
namespace trellis::device {

/// One operand as [rows, depth]: rows are M or N, depth is K.
struct Side {
  std::uint32_t buffer = 0;
  isa::DType dtype = isa::DType::kBf16;
  std::int64_t offset = 0;
  std::int64_t row_stride = 0, depth_stride = 0;
  std::int64_t rows = 0;  ///< all of them
  std::size_t view = 0;   ///< for batch offsets
  bool transposed = false;
  Phase::Region staging;  ///< transposed: where its loads land
};

/// Rows of a side on chip: [k on 128 partitions, k tile, width], of which the first ones are used.
/// The rows of a block that is transposed lie in groups, [group, k on 128 partitions, k tile, rows
/// of a group], so that the first of them can be multiplied while the rest arrives.
struct Held {
  TileId tile = isa::kNone;
  std::vector<TileId> parts;  ///< the same memory cut along K, or into its groups: each can be used
                              ///< as soon as it is there; empty: not cut
  std::int64_t k_step = 0;    ///< elements between k tiles: the width, or the rows of a group
  std::int64_t row_step = 1;  ///< elements between rows; k tiles, where rows are group starts
  std::int64_t first = 0;     ///< k tile
  std::int64_t group = 0;     ///< rows of a group; 0: none
  [[nodiscard]] Index at(const Index& k_tile, const Index& row) const {
    return (k_tile + Index(first)) * k_step + row * row_step;
  }
};

/// Part of c: rows [m0, m0 + rows) and columns [n0, n0 + columns).
struct Area {
  Index m0;
  std::int64_t rows = 0;
  Index n0;
  std::int64_t columns = 0;
};

}  // namespace trellis::device
