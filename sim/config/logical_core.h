#pragma once

#include "sim/config/system_config.h"

namespace trellis::sim {

/// One logical core made of `size` physical ones (LNC): `size` times the rates and capacities,
/// 1/`size` of an engine's latencies, because each core of a pair pays them for its half of the
/// instructions only; the latencies of DMA and memory stay. A logical core is thus timed as one
/// core of twice the speed whose work always splits evenly: an estimate, held against real pairs by
/// the tests (README, "Logical cores").
[[nodiscard]] CoreConfig to_logical_core(const CoreConfig& physical, int size);

}  // namespace trellis::sim
