#pragma once

#include <array>
#include <memory>
#include <string>
#include <systemc>
#include <vector>

#include "sim/systemc/dma_queue.h"
#include "sim/systemc/engine.h"
#include "sim/systemc/fast_forward.h"
#include "sim/systemc/hbm.h"

namespace trellis::sim {

/// One NeuronCore: five engines, semaphores and DMA queues on an HBM stack. Machine lets it run.
class NeuronCore final : public sc_core::sc_module, public RepeatingCore {
 public:
  /// `before`: the core that comes before it on the stack, or null; its engines are numbered first
  /// and its DMA wins ties.
  NeuronCore(const sc_core::sc_module_name& name, NeuronCore* before, Hbm& stack, Turn& turn);

  void configure(const CoreConfig& core);
  /// Starts a segment at `now`. The queues, one an engine, must outlive the run. `peer`: the pair's
  /// other core, started with the same call, or null.
  void start(const std::vector<ResolvedQueue>& queues, NeuronCore* peer, LoopObserver* observer,
             std::size_t kernels, std::int64_t now);

  /// Engines that have not finished, one a line; empty when all have.
  [[nodiscard]] std::string waiting() const;
  /// When the last engine and the last DMA are done, skipped time included. REQUIRES: waiting() is
  /// empty.
  [[nodiscard]] std::int64_t end() const { return last_end() + skipped_; }
  /// Keeps when each instruction and each transfer of the next runs was executed, until `false`.
  void keep_instructions(bool keep);
  void set_clock_grid(std::int64_t grid) { engine_shared_.clock_grid = grid; }
  /// Busy times and traffic; no duration. REQUIRES: waiting() is empty.
  [[nodiscard]] SegmentTiming usage();

  [[nodiscard]] std::vector<Engine*> engines();
  [[nodiscard]] const CoreConfig& config() const { return config_; }

  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const override;
  void append_semaphores(std::vector<Semaphore*>& out) override;
  void append_counters(std::vector<std::int64_t*>& out) override;
  [[nodiscard]] BusyMeter& meter() override { return meter_; }
  void skip(std::int64_t now, std::int64_t time) override;

 private:
  [[nodiscard]] std::int64_t last_end() const;
  void reset(const std::vector<ResolvedQueue>& queues, std::size_t kernels, std::int64_t now);

  CoreConfig config_;
  const Hbm& stack_;
  std::vector<Semaphore> semaphores_;
  std::vector<std::uint16_t> awaited_;  ///< semaphores that an engine waits on in this segment
  BusyMeter meter_;
  std::int64_t begin_ = 0;  ///< of the run
  std::vector<InstructionTiming> instructions_, transfers_;
  DmaShared dma_shared_;
  EngineShared engine_shared_;
  std::array<std::unique_ptr<DmaQueue>, isa::kNumDmaQueues> dma_;
  std::vector<Engine> engines_;
  std::int64_t skipped_ = 0;
};

}  // namespace trellis::sim
