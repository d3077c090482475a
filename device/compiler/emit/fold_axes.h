#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/compiler/emit/layout_axes.h"
#include "device/compiler/emit/phase.h"

namespace trellis::device {

/// How much of each axis a partition holds at a time: enough for long runs in both views.
using Part = std::vector<std::int64_t>;

struct Fold {
  Axes axes;
  std::int64_t step = 1;  ///< of the source's innermost axis
  Part part;
  std::int64_t run_bytes = 0;  ///< the shorter of its runs in the two views
};

/// The fastest part that moves elements of `size` bytes in long runs on both sides, with at most
/// `tile_bytes` of SBUF a tile; nullopt when there is none.
[[nodiscard]] std::optional<Fold> plan_fold(const Axes& axes, std::int64_t size,
                                            std::int64_t tile_bytes);

/// Changes the order of axes inside partitions, which load and store parts in long runs.
[[nodiscard]] Phase fold_axes(std::uint32_t kernel, const HbmView& source, const HbmView& target,
                              const Fold& fold);

}  // namespace trellis::device
