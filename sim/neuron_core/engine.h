#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <systemc>
#include <vector>

#include "sim/dma/dma_queue.h"
#include "sim/neuron_core/busy_meter.h"
#include "sim/neuron_core/resolved_queue.h"
#include "sim/neuron_core/semaphore.h"
#include "sim/neuron_core/tensor_pipeline.h"

namespace trellis::sim {

/// What the engines of a core share.
struct EngineShared {
  std::vector<Semaphore>* semaphores = nullptr;
  BusyMeter* meter = nullptr;
  std::array<DmaQueue*, isa::kNumDmaQueues> dma{};
  std::int64_t semaphore_latency = 0;
  std::int64_t activation_table_load = 0;
  bool abandon = false;  ///< waiting engines give up: a deadlock was found
};

/// One sequencer with its data path: executes its queue in order. It runs ahead of the kernel's clock on `local_` and gives way to the
/// kernel only at a semaphore whose increments are not known yet, and once per quantum.
class Engine final : public sc_core::sc_module {
 public:
  Engine(const sc_core::sc_module_name& name, isa::Engine which, const EngineShared& shared);

  void configure(const CoreConfig& core) { pipeline_.configure(core.tensor); }
  /// Starts a queue at the kernel's current time. The queue must outlive the run.
  void start(const ResolvedQueue& queue);

  [[nodiscard]] bool finished() const { return finished_; }
  /// When the last result is there. REQUIRES: finished.
  [[nodiscard]] std::int64_t end() const { return std::max(local_, completion_); }
  /// Where an engine that never finished is: "tensor waits at instruction 5 for semaphore 3 >= 1 (holds 0)".
  [[nodiscard]] std::string where() const;

 private:
  void run();
  void execute();
  /// False: the run was abandoned.
  bool await(const ResolvedOp& op);
  bool await(const isa::SemaphoreWait& wait);
  void compute(const ResolvedOp& op);
  void stream(const ResolvedOp& op, const TensorPipeline::Slot& slot);
  void start_dma(const ResolvedOp& op);
  void post(const ResolvedOp& op);
  /// The next instruction after an end_loop at `pc`.
  std::size_t close_loop(std::size_t pc);
  void keep_near_kernel();

  const isa::Engine which_;
  const int track_;
  const EngineShared& shared_;
  TensorPipeline pipeline_;
  sc_core::sc_event start_;
  const ResolvedQueue* queue_ = nullptr;
  bool finished_ = true;
  std::size_t pc_ = 0;
  std::int64_t local_ = 0;       ///< the sequencer looks at the next instruction
  std::int64_t completion_ = 0;  ///< results are posted in order: not before the last one
  std::uint8_t table_ = 0;
  std::uint64_t dma_count_ = 0;
  isa::SemaphoreWait blocked_on_{};
  std::array<std::int64_t, isa::kMaxLoopDepth> remaining_{};
  int depth_ = 0;
};

}  // namespace trellis::sim
