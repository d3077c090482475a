#pragma once

#include <cstdint>
#include <vector>

#include "sim/sim.h"

namespace trellis::device {

/// The time by which one kernel moved the end of a segment's work forward. Kernels overlap,
/// advances do not: each begins where the one before ended, and together they last until the last
/// kernel's end.
struct KernelAdvance {
  std::uint32_t kernel = 0;
  Picoseconds from, to;          ///< from the segment's start
  bool bound_by_memory = false;  ///< the kernel kept a DMA queue busy for longer than any engine
};

/// The advances of a segment's kernels, in the order of their ends.
[[nodiscard]] std::vector<KernelAdvance> kernel_advances(const sim::SegmentTiming& segment);

}  // namespace trellis::device
