#pragma once

#include "sim/config/system_config.h"

namespace trellis::device::testing {

/// A core with Trn1's capacities and planning numbers; `small` has so little SBUF that blocking
/// shows at test sizes.
inline sim::CoreConfig test_core(std::int64_t sbuf_bytes_per_partition = 192 * 1024) {
  sim::CoreConfig core;
  core.tensor.clock = Hertz(2.8e9);
  core.dma.engine_rate = BytesPerSecond(18e9);
  core.dma.descriptor_floor = Picoseconds(60'000);
  core.dma.hbm_rate = BytesPerSecond(410e9);
  core.planning = {.product_time = Picoseconds(9'500'000),
                   .product_block_time = Picoseconds(2'700'000),
                   .product_panel_time = Picoseconds(600'000),
                   .product_panels_ahead = 1.8,
                   .product_transfer_share = 0.86,
                   .product_cut_gain = 0.92,
                   .chain_unit_cycles = 64,
                   .chain_latency_cycles = 200,
                   .chain_lag_gain = 0.99,
                   .chain_scalar_pass = 0.8};
  core.limits.sbuf_bytes_per_partition = sbuf_bytes_per_partition;
  return core;
}

}  // namespace trellis::device::testing
