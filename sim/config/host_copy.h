#pragma once

#include "base/units.h"
#include "sim/config/system_config.h"

namespace trellis::sim {

/// How long a copy between host and device memory takes, from call to return: the cost of a small
/// write, then PCIe. A chip has a few host DMA engines in addition to those of its cores; one copy
/// uses one engine, and `at_once` copies to the same chip share them.
[[nodiscard]] Picoseconds host_copy_time(Bytes bytes, const ChipConfig& chip, int at_once = 1);

}  // namespace trellis::sim
