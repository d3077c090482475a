#include "device/compiler/emit/hbm_view.h"

#include <numeric>
#include <utility>

namespace trellis::device {

using sim::isa::DType;

std::int64_t HbmView::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

DType device_dtype(DType host) {
  if (host == DType::kFp64) return DType::kFp32;
  if (host == DType::kInt64) return DType::kInt32;
  return host;
}

void collapse(std::vector<std::int64_t>& sizes, std::vector<std::vector<std::int64_t>>& strides) {
  std::vector<std::int64_t> out;
  std::vector<std::vector<std::int64_t>> out_strides(strides.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    bool mergeable = !out.empty();
    for (std::size_t v = 0; v < strides.size() && mergeable; ++v)
      mergeable = out_strides[v].back() == strides[v][d] * sizes[d];
    if (mergeable) {
      out.back() *= sizes[d];
      for (std::size_t v = 0; v < strides.size(); ++v) out_strides[v].back() = strides[v][d];
    } else {
      out.push_back(sizes[d]);
      for (std::size_t v = 0; v < strides.size(); ++v) out_strides[v].push_back(strides[v][d]);
    }
  }
  if (out.empty()) {
    out.push_back(1);
    for (auto& s : out_strides) s.push_back(1);
  }
  sizes = std::move(out);
  strides = std::move(out_strides);
}

HbmView transposed(HbmView view, std::size_t first, std::size_t second) {
  std::swap(view.sizes[first], view.sizes[second]);
  std::swap(view.strides[first], view.strides[second]);
  return view;
}

HbmView contiguous(std::uint32_t buffer, DType dtype, const std::vector<std::int64_t>& sizes) {
  HbmView view{buffer, dtype, sizes, std::vector<std::int64_t>(sizes.size()), 0};
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) view.strides[d] = stride;
  return view;
}

bool common_refinement(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b,
                       std::vector<std::int64_t>& refined) {
  refined.clear();
  std::size_t i = 0, j = 0;
  std::int64_t x = 1, y = 1;
  while (true) {
    while (x == 1 && i < a.size()) x = a[i++];
    while (y == 1 && j < b.size()) y = b[j++];
    if (x == 1 || y == 1) return x == y;
    const std::int64_t outer = std::min(x, y);
    // Splitting from the outside: the smaller count must divide the larger one.
    if (std::max(x, y) % outer != 0) return false;
    refined.push_back(outer);
    x /= outer;
    y /= outer;
  }
}

std::vector<std::int64_t> refine_strides(const std::vector<std::int64_t>& sizes,
                                         const std::vector<std::int64_t>& strides,
                                         const std::vector<std::int64_t>& refined) {
  std::vector<std::int64_t> out;
  std::size_t r = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::int64_t rest = sizes[d];
    while (rest > 1) {
      rest /= refined[r++];
      out.push_back(strides[d] * rest);
    }
  }
  return out;
}

}  // namespace trellis::device
