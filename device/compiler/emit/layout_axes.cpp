#include "device/compiler/emit/layout_axes.h"

#include <algorithm>

namespace trellis::device {

Axes axes_of(const HbmView& source, const HbmView& target) {
  Axes axes;
  for (std::size_t d = 0; d < source.rank(); ++d) {
    if (source.sizes[d] > 1)
      axes.push_back({source.sizes[d], source.strides[d], target.strides[d]});
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const auto& a, const auto& b) { return a.out > b.out; });
  Axes merged;
  for (const Axis& a : axes) {
    if (!merged.empty() && merged.back().in == a.in * a.size && merged.back().out == a.out * a.size)
      merged.back() = {merged.back().size * a.size, a.in, a.out};
    else
      merged.push_back(a);
  }
  return merged;
}

std::vector<std::size_t> run_of(const Axes& axes, std::int64_t Axis::* stride) {
  std::vector<std::size_t> order(axes.size());
  for (std::size_t a = 0; a < order.size(); ++a) order[a] = a;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return axes[a].*stride < axes[b].*stride; });
  std::vector<std::size_t> run;
  std::int64_t next = axes[order[0]].*stride;
  for (const std::size_t a : order) {
    if (axes[a].*stride != next) break;
    run.push_back(a);
    next *= axes[a].size;
  }
  return run;
}

}  // namespace trellis::device
