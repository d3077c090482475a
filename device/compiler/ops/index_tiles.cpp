#include "device/compiler/ops/index_tiles.h"

#include <algorithm>

#include "device/compiler/gemm/array_sizes.h"

namespace trellis::device {

std::vector<Span> spans(std::int64_t count, std::int64_t most) {
  std::vector<Span> out;
  std::int64_t at = 0;
  while (count - at >= kP) {
    const std::int64_t per = std::min((count - at) / kP, most);
    out.push_back({at, per, static_cast<int>(kP)});
    at += per * kP;
  }
  if (at < count) out.push_back({at, 1, static_cast<int>(count - at)});
  return out;
}

std::optional<std::int64_t> flat_stride(const HbmView& v, std::size_t first_dim) {
  std::vector<std::int64_t> sizes(v.sizes.begin() + static_cast<std::ptrdiff_t>(first_dim),
                                  v.sizes.end());
  std::vector<std::vector<std::int64_t>> strides{
      {v.strides.begin() + static_cast<std::ptrdiff_t>(first_dim), v.strides.end()}};
  if (sizes.empty()) return 1;
  collapse(sizes, strides);
  if (sizes.size() != 1) return std::nullopt;
  return strides[0][0];
}

Ref span_of(const HbmView& list, std::int64_t stride, const Span& s) {
  return Phase::hbm(list.buffer, list.dtype, s.partitions, s.per * stride,
                    {{stride, static_cast<std::int32_t>(s.per)}},
                    Index(list.offset + s.first * stride));
}

Ref load_span(Phase& phase, const HbmView& list, std::int64_t stride, const Span& s) {
  const Ref tile = phase.at(phase.sbuf(s.per * isa::size_bytes(list.dtype)), list.dtype,
                            s.partitions, row(s.per));
  phase.load(tile, span_of(list, stride, s));
  return tile;
}

Ref single_elements(const HbmView& v) {
  return Phase::hbm(v.buffer, v.dtype, 1, 1, row(1), Index(v.offset));
}

std::optional<Grid> grid_along(const HbmView& v, std::int64_t dim) {
  if (v.rank() == 0) return std::nullopt;
  const auto along =
      static_cast<std::ptrdiff_t>(dim < 0 ? dim + static_cast<std::int64_t>(v.rank()) : dim);
  HbmView others = v;
  others.sizes.erase(others.sizes.begin() + along);
  others.strides.erase(others.strides.begin() + along);
  const auto stride = flat_stride(others);
  if (!stride) return std::nullopt;
  Grid grid{v, others.elements(), v.sizes[static_cast<std::size_t>(along)], *stride,
            v.strides[static_cast<std::size_t>(along)]};
  if (grid.rows == 1) grid.row_stride = 0;
  return grid;
}

}  // namespace trellis::device
