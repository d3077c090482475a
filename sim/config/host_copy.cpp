#include "sim/config/host_copy.h"

#include <algorithm>

namespace trellis::sim {

Picoseconds host_copy_time(Bytes bytes, const ChipConfig& chip, int at_once) {
  const double share =
      std::min(1.0, static_cast<double>(chip.host_dma_engines) / std::max(at_once, 1));
  return chip.host_write_latency + transfer_time(bytes, chip.host_dma_rate * share);
}

}  // namespace trellis::sim
