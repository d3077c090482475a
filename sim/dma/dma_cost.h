#pragma once

#include <cstdint>

#include "base/units.h"
#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// One transfer as the DMA hardware sees it: equal descriptors on neighbouring engines, how it is
/// started, and its share of HBM traffic.
///
///   SBUF partitions  0…7  8…15  16…23  …  120…127   an engine serves the rows of eight partitions
///     (hardware facts 3.2); a transfer
///   engine            0     1     2           15      between rows of HBM is dealt out evenly
struct DmaTransfer {
  std::int64_t descriptors = 0;
  std::int64_t per_engine = 0;  ///< descriptors of each engine; the last one may have fewer
  int first_engine = 0;
  int num_engines = 0;
  Picoseconds descriptor_time;  ///< on an engine
  std::int64_t packet = 1;      ///< descriptors after which an engine looks at its other rings
  Picoseconds preparation;      ///< the issuing engine makes descriptors before it, …
  Picoseconds trigger;          ///< … and is busy with the trigger itself
  Picoseconds latency;          ///< trigger's end → first data
  Picoseconds completion;       ///< last data → its semaphores are visible
  int generator = -1;           ///< hardware descriptor generator, -1: none
  Picoseconds given{-1};  ///< the time from the trigger's start to the last data is known: the
                          ///< engines are not asked; -1: it is not
  Bytes bytes;            ///< moved by the engines
  Bytes hbm_read, hbm_written;
  std::int64_t hbm_load = 0;  ///< bytes that HBM could have moved in the same time: rows that lie
                              ///< at a distance use a part of its channels
};

/// REQUIRES: a legal DMA instruction of `issuer`'s queue.
[[nodiscard]] DmaTransfer dma_transfer(const isa::Instruction& instruction, isa::Engine issuer,
                                       const isa::Program& program, const DmaConfig& dma,
                                       const isa::Limits& limits);

/// The same right after another transfer by software, for which the issuing engine did not wait.
void follow_software(DmaTransfer& transfer, const DmaConfig& dma);

/// Returns the descriptors of a transfer; kDefault is replaced by what it means on this core.
[[nodiscard]] isa::DmaDescriptors resolve_descriptors(const isa::Instruction& instruction,
                                                      isa::Engine issuer, const DmaConfig& dma);

}  // namespace trellis::sim
