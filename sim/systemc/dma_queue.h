#pragma once

#include <array>
#include <cstdint>
#include <deque>
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

class DmaQueue;

/// State that the DMA queues of a core share.
struct DmaShared {
  DmaConfig config;
  DmaEngines engines;
  std::vector<Semaphore>* semaphores = nullptr;
  BusyMeter* meter = nullptr;
  std::vector<DmaQueue*> queues;  ///< every one of the core, by track
  DmaShared* before =
      nullptr;  ///< of the core that goes first when both act at one time: they share an HBM stack
  std::array<std::int64_t, 2> generator_free{};   ///< hardware descriptor generators
  std::vector<InstructionTiming>* log = nullptr;  ///< of transfers; null: none is kept
  std::int64_t backlog_end = 0;  ///< when what the generators have started will have been moved
  std::int64_t hbm_read = 0, hbm_written = 0;
  std::int64_t last_completion = 0;
};

/// A transfer that an engine has started.
struct DmaRequest {
  const DmaTransfer* transfer = nullptr;
  const isa::SemaphoreUpdate* updates = nullptr;
  std::uint32_t num_updates = 0;
  std::uint32_t kernel = 0;
  isa::Engine engine = isa::Engine::kSync;  ///< that started it
  std::uint32_t index = 0;                  ///< of the instruction in its queue
  std::int64_t arrival = 0;                 ///< first data can move
  std::uint64_t order = 0;                  ///< engine and its own count: breaks ties of `arrival`
};

/// One group of DMA rings, the same ring on every engine: takes its transfers in order of arrival,
/// hands the engines one packet at a time so that the groups take turns at packet boundaries, and
/// posts the completion. A group of a lower class waits while a higher one has work.
class DmaQueue final : public sc_core::sc_module {
 public:
  tlm_utils::simple_initiator_socket<DmaQueue> hbm{"hbm"};

  DmaQueue(const sc_core::sc_module_name& name, int track, DmaShared& shared);
  void reset();
  /// How long the trigger of `t`, by hardware, at `now` waits until no more bytes than a generator
  /// takes are under way.
  [[nodiscard]] std::int64_t back_pressure(const DmaTransfer& t, std::int64_t now);
  /// A transfer whose last data come at `end`: no engine is asked.
  void complete_given(const DmaRequest& request, std::int64_t begin, std::int64_t end);
  /// `request.arrival` is when the trigger was executed; the latency until the first data is added
  /// here. Returns when they can move: before that the request has no effect on anybody.
  std::int64_t submit(DmaRequest request);

  /// Everything that decides what happens from `now` on, relative to `now`: equal states evolve
  /// alike.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const;

 private:
  struct Later {
    bool operator()(const DmaRequest& a, const DmaRequest& b) const {
      return a.arrival != b.arrival ? a.arrival > b.arrival : a.order > b.order;
    }
  };

  void run();
  void transfer(const DmaRequest& request);
  /// One packet on each engine. Returns when its data are through the engines and HBM.
  std::int64_t packet(const DmaRequest& request, std::int64_t from, std::int64_t count,
                      std::int64_t hbm_bytes);
  void complete(const DmaRequest& request, std::int64_t end);
  /// Waits until fewer than `queued_packets` of this group are on the engines and no higher class
  /// has work.
  void await_turn();
  void sleep_until(std::int64_t time, const sc_core::sc_event* or_earlier = nullptr);
  /// True if a queue that goes first wakes at the same time: of the queues that wake at one time,
  /// those of the first core and those of lower tracks go first.
  [[nodiscard]] bool others_go_first() const;
  [[nodiscard]] int priority() const;
  [[nodiscard]] bool must_yield() const;
  void release();

  const int track_;
  std::int64_t wakes_at_ = kNever;
  DmaShared& shared_;
  sc_core::sc_event submitted_;
  sc_core::sc_event released_;  ///< this group has become idle
  std::priority_queue<DmaRequest, std::vector<DmaRequest>, Later> pending_;
  tlm::tlm_generic_payload payload_;
  const DmaTransfer* current_ = nullptr;
  std::int64_t sent_ = 0;                ///< descriptors per engine of the current transfer
  std::int64_t current_end_ = 0;         ///< of what has been handed over of it
  std::deque<std::int64_t> on_engines_;  ///< ends of the packets that were handed over
  std::int64_t busy_until_ = 0;
  std::int64_t last_end_ = 0;
  std::int64_t first_data_ = 0;  ///< of the current transfer
};

}  // namespace trellis::sim
