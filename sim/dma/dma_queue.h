#pragma once

#include <cstdint>
#include <queue>
#include <systemc>
#include <tlm>
#include <tlm_utils/simple_initiator_socket.h>
#include <vector>

#include "sim/dma/dma_cost.h"
#include "sim/dma/dma_engines.h"
#include "sim/isa/program.h"
#include "sim/neuron_core/busy_meter.h"
#include "sim/neuron_core/semaphore.h"

namespace trellis::sim {

/// What the DMA queues of a core share.
struct DmaShared {
  DmaConfig config;
  DmaEngines engines;
  std::vector<Semaphore>* semaphores = nullptr;
  BusyMeter* meter = nullptr;
  std::int64_t hbm_read = 0, hbm_written = 0;
  std::int64_t last_completion = 0;
};

/// A transfer that an engine has started.
struct DmaRequest {
  const DmaTransfer* transfer = nullptr;
  const isa::SemaphoreUpdate* updates = nullptr;
  std::uint32_t num_updates = 0;
  std::uint32_t kernel = 0;
  std::int64_t arrival = 0;  ///< first data can move
  std::uint64_t order = 0;   ///< engine and its own count: breaks ties of `arrival`
};

/// One group of DMA rings: takes its transfers in order of arrival, cuts long ones into chunks so that the groups share the engines
/// chunk by chunk (the hardware's round robin over rings), and posts the completion.
class DmaQueue final : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<DmaQueue> hbm{"hbm"};

  DmaQueue(const sc_core::sc_module_name& name, int track, DmaShared& shared);
  void reset();
  /// `request.arrival` is when the trigger was executed; the fixed latency is added here.
  void submit(DmaRequest request);

 private:
  struct Later {
    bool operator()(const DmaRequest& a, const DmaRequest& b) const { return a.arrival != b.arrival ? a.arrival > b.arrival : a.order > b.order; }
  };

  void run();
  void transfer(const DmaRequest& request);
  /// Returns when the chunk is through the engines and HBM.
  std::int64_t chunk(const DmaRequest& request, std::int64_t descriptors, std::int64_t hbm_bytes, bool first);
  void complete(const DmaRequest& request, std::int64_t end);

  const int track_;
  DmaShared& shared_;
  sc_core::sc_event submitted_;
  std::priority_queue<DmaRequest, std::vector<DmaRequest>, Later> pending_;
  tlm::tlm_generic_payload payload_;
  std::int64_t busy_until_ = 0;
  std::int64_t last_end_ = 0;
};

}  // namespace trellis::sim
