#pragma once

#include <cstdint>
#include <vector>

#include "sim/config/system_config.h"
#include "sim/dma/dma_cost.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// One instruction with everything that its execution needs, so that the hot path looks nothing up.
struct ResolvedOp {
  enum class Kind : std::uint8_t { kCompute, kLoadStationary, kMatmul, kDma, kSemaphore, kLoop, kEndLoop };
  Kind kind = Kind::kSemaphore;
  bool dependent = false;      ///< reads the result of the instruction before it
  std::uint8_t table = 0;      ///< ScalarE function table, 0: none needed
  std::uint8_t dma_queue = 0;
  std::uint16_t num_waits = 0;
  std::uint16_t num_updates = 0;
  std::uint32_t first_wait = 0;
  std::uint32_t first_update = 0;
  std::uint32_t kernel = 0;
  std::uint32_t partner = 0;   ///< kEndLoop: its kLoop; kDma: index in `transfers`
  std::int64_t occupancy = 0;  ///< picoseconds
  std::int64_t latency = 0;
  std::int64_t count = 0;      ///< kLoop
};

/// One engine's queue of one segment.
struct ResolvedQueue {
  std::vector<ResolvedOp> ops;
  std::vector<isa::SemaphoreWait> waits;
  std::vector<isa::SemaphoreUpdate> updates;
  std::vector<DmaTransfer> transfers;
};

/// The five queues of a segment. Updates of semaphores on which nobody waits are dropped.
[[nodiscard]] std::vector<ResolvedQueue> resolve_segment(const isa::Program& program, const isa::Segment& segment, const CoreConfig& core);

}  // namespace trellis::sim
