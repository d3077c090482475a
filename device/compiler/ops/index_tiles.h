#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/phase.h"

namespace trellis::device {

inline constexpr std::int64_t kMostPerPartition = 2048;

/// A list of `count` entries as tiles of [partitions, per partition]: entry first + p · per + t.
struct Span {
  std::int64_t first = 0, per = 0;
  int partitions = 0;
};
[[nodiscard]] std::vector<Span> spans(std::int64_t count, std::int64_t most = kMostPerPartition);

/// One stride for all elements in order; nullopt when there is none.
[[nodiscard]] std::optional<std::int64_t> flat_stride(const HbmView& v, std::size_t first_dim = 0);

[[nodiscard]] Ref span_of(const HbmView& list, std::int64_t stride, const Span& s);
[[nodiscard]] Ref load_span(Phase& phase, const HbmView& list, std::int64_t stride, const Span& s);

/// A view as a table whose rows are elements: what single elements are gathered from.
[[nodiscard]] Ref single_elements(const HbmView& v);

/// A view as rows along one of its dimensions.
struct Grid {
  HbmView view;
  std::int64_t rows = 1, columns = 1, row_stride = 0, column_stride = 1;
};
/// nullopt when the other dimensions have no common stride, or there is none at all.
[[nodiscard]] std::optional<Grid> grid_along(const HbmView& v, std::int64_t dim);

}  // namespace trellis::device
