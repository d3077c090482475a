#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/config/system_config.h"
#include "sim/dma/dma_cost.h"
#include "sim/isa/program.h"
#include "sim/job/job.h"
#include "sim/neuron_core/ports.h"

namespace trellis::sim {

/// How far back an engine looks for the instruction whose result another one reads; further back,
/// the result is there.
inline constexpr int kProducerWindow = 8;

/// One instruction with everything that its execution needs, so that the hot path looks nothing up.
struct ResolvedOp {
  enum class Kind : std::uint8_t {
    kCompute,
    kLoadStationary,
    kMatmul,
    kDma,
    kSendRecv,
    kSemaphore,
    kLoop,
    kEndLoop,
    kCoreBarrier
  };
  Kind kind = Kind::kSemaphore;
  std::uint8_t producer = 0;  ///< kCompute: reads the result of the so-manyth kCompute before it;
                              ///< 0: of none in the window
  std::uint8_t table = 0;     ///< ScalarE function table, 0: none needed
  std::uint8_t dma_queue = 0;
  std::uint16_t num_waits = 0;
  std::uint16_t num_updates = 0;
  std::uint32_t first_wait = 0;
  std::uint32_t first_update = 0;
  std::uint32_t kernel = 0;
  std::uint32_t partner =
      0;  ///< kLoop, kEndLoop: index in `loops`; kDma, kSendRecv: in `transfers`
  std::int64_t occupancy = 0;    ///< picoseconds
  std::int64_t preparation = 0;  ///< kDma: before the occupancy
  std::int64_t latency = 0;
  std::int64_t overhead = 0;  ///< of `occupancy`: what the array's low clock hides
  std::int64_t dependent_delay =
      0;                   ///< a dependent operation begins so long after the result that it reads
  PortSet ports = 0;       ///< paths that it shares with other engines during its occupancy
  std::int64_t count = 0;  ///< kLoop
};

/// The instructions between a kLoop and its kEndLoop.
struct LoopBody {
  std::uint32_t begin = 0;         ///< the kLoop's index in `ops`
  std::uint32_t first_kernel = 0;  ///< the kernels of the body lie in [first_kernel, last_kernel]
  std::uint32_t last_kernel = 0;
  std::int64_t work = 0;  ///< instructions executed in one iteration, inner loops included
};

/// One engine's queue of one segment.
struct ResolvedQueue {
  std::vector<ResolvedOp> ops;
  std::vector<isa::SemaphoreWait> waits;
  std::vector<isa::SemaphoreUpdate> updates;
  std::vector<DmaTransfer> transfers;
  std::vector<LoopBody> loops;
};

/// The five queues of a segment. Updates of semaphores on which no one waits are dropped.
/// `given`: transfers whose time is known, by engine and index in its queue.
[[nodiscard]] std::vector<ResolvedQueue> resolve_segment(const isa::Program& program,
                                                         const isa::Segment& segment,
                                                         const CoreConfig& core,
                                                         std::span<const GivenTransfer> given = {});

}  // namespace trellis::sim
