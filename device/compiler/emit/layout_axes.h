#pragma once

#include <cstdint>
#include <vector>

#include "device/compiler/emit/hbm_view.h"

namespace trellis::device {

inline constexpr std::int64_t kLayoutPartitions = 128;
/// Elements of which one is wanted, and all are loaded.
inline constexpr std::int64_t kWidestLayoutStep = 16;

/// A dimension of both views.
struct Axis {
  std::int64_t size = 1, in = 0, out = 0;  ///< strides in elements
};
using Axes = std::vector<Axis>;

/// The dimensions in the order of the target's memory, those merged that both views allow.
[[nodiscard]] Axes axes_of(const HbmView& source, const HbmView& target);

/// Axes whose elements lie next to each other, the innermost first: `stride` of each is the first
/// one's times the sizes of those before.
[[nodiscard]] std::vector<std::size_t> run_of(const Axes& axes, std::int64_t Axis::* stride);

}  // namespace trellis::device
