#pragma once

#include "sim/config/system_config.h"

namespace trellis::device::testing {

/// A core with Trn1's capacities; `small` has so little SBUF that blocking shows at test sizes.
inline sim::CoreConfig test_core(std::int64_t sbuf_bytes_per_partition = 192 * 1024) {
  sim::CoreConfig core;
  core.tensor.clock = Hertz(2.8e9);
  core.dma.engine_rate = BytesPerSecond(18e9);
  core.dma.descriptor_floor = Picoseconds(60'000);
  core.dma.hbm_rate = BytesPerSecond(410e9);
  core.limits.sbuf_bytes_per_partition = sbuf_bytes_per_partition;
  return core;
}

}  // namespace trellis::device::testing
