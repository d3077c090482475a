#pragma once

#include <optional>
#include <vector>

#include "device/compiler/ops/lowering.h"

namespace trellis::device {

/// A part of each row of a tensor: `source` is dense, [rows, its elements of a row], and `place`
/// says where these lie in the row.
struct RowPart {
  HbmView source;
  std::int64_t offset = 0;
  Dims place;
};

/// Tensors whose rows are longer are written part by part.
inline constexpr std::int64_t kLongestJoinedRow = 24 * 1024;  // bytes

/// Puts rows of `length` elements together in SBUF, for parts that by themselves would be written
/// in short runs: `out` is dense, [rows, length]. `fill`: what no part covers; nullopt: they cover
/// everything. REQUIRES: a row has at most kLongestJoinedRow bytes.
void join_rows(Lowering& lowering, std::uint32_t kernel, const HbmView& out, std::int64_t length,
               const std::vector<RowPart>& parts, std::optional<double> fill);

}  // namespace trellis::device
