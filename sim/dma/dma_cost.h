#pragma once

#include <cstdint>

#include "base/units.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// One transfer as the DMA engines see it: equal descriptors that are dealt out to the engines, and its share of HBM traffic.
struct DmaTransfer {
  std::int64_t descriptors = 0;
  Picoseconds descriptor_time;  ///< on an engine
  Bytes bytes;                  ///< moved by the engines
  Bytes hbm_read, hbm_written;
};

/// REQUIRES: a legal DMA instruction.
[[nodiscard]] DmaTransfer dma_transfer(const isa::Instruction& instruction, const isa::Program& program, const DmaConfig& dma, const isa::Limits& limits);

}  // namespace trellis::sim
