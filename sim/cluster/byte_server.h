#pragma once

#include <cstdint>

#include "sim/cluster/byte_history.h"
#include "sim/mem/bandwidth_server.h"

namespace trellis::sim {

/// A link, the DMA engines or the memory of a core while a cluster runs: when it is free again, and
/// what it has carried.
struct ByteServer {
  BandwidthServer server;
  bool ready = false;     ///< it knows its rate
  std::int64_t busy = 0;  ///< picoseconds
  std::int64_t bytes = 0;
  ByteHistory history;  ///< of a link, since the run began
};

}  // namespace trellis::sim
