#pragma once

#include "sim/config/system_config.h"

namespace trellis::sim {

/// One logical core made of `size` physical ones (LNC): `size` times the rates and capacities, the same latencies. A logical core is
/// thus timed as one core of twice the speed whose work always splits evenly: an estimate (README, "Logical cores").
[[nodiscard]] CoreConfig to_logical_core(const CoreConfig& physical, int size);

}  // namespace trellis::sim
