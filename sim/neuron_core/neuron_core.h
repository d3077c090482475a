#pragma once

#include <array>
#include <memory>
#include <systemc>
#include <vector>

#include "sim/dma/dma_queue.h"
#include "sim/mem/hbm.h"
#include "sim/neuron_core/engine.h"

namespace trellis::sim {

/// One logical NeuronCore with its DMA queues and its share of HBM. Times one program at a time: it is started, the kernel runs until
/// nothing is left to do, and the timing is read off.
class NeuronCore final : public sc_core::sc_module {
 public:
  explicit NeuronCore(const sc_core::sc_module_name& name);

  void configure(const SystemConfig& system);
  /// Runs every segment of the program; calls sc_start. Throws Error when a segment deadlocks.
  [[nodiscard]] CoreTiming time(const isa::Program& program);

 private:
  SegmentTiming time_segment(const isa::Program& program, std::size_t index);
  void reset(std::size_t kernels);
  void check_finished(const isa::Program& program, std::size_t segment);

  CoreConfig config_;
  std::vector<Semaphore> semaphores_;
  BusyMeter meter_;
  DmaShared dma_shared_;
  EngineShared engine_shared_;
  Hbm hbm_{"hbm"};
  std::array<std::unique_ptr<DmaQueue>, isa::kNumDmaQueues> dma_;
  std::array<std::unique_ptr<Engine>, isa::kNumEngines> engines_;
};

}  // namespace trellis::sim
