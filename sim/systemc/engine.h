#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "sim/neuron_core/busy_meter.h"
#include "sim/neuron_core/port_arbiter.h"
#include "sim/neuron_core/resolved_queue.h"
#include "sim/neuron_core/semaphore.h"
#include "sim/neuron_core/tensor_pipeline.h"
#include "sim/neuron_core/turn.h"
#include "sim/systemc/dma_queue.h"

namespace trellis::sim {

class Engine;

/// Is notified when an engine starts a loop over.
class LoopObserver {
 public:
  /// `level`: of the loop, 0 is the outermost. No other engine acts before `now`.
  virtual void loop_closed(Engine& engine, int level, std::int64_t now) = 0;

 protected:
  ~LoopObserver() = default;
};

/// State that the engines of a core share.
struct EngineShared {
  std::vector<Semaphore>* semaphores = nullptr;
  BusyMeter* meter = nullptr;
  std::vector<InstructionTiming>* log = nullptr;  ///< null: none is kept
  Turn* turn = nullptr;
  LoopObserver* observer = nullptr;  ///< null: loops are executed one by one
  std::array<DmaQueue*, isa::kNumDmaQueues> dma{};
  PortArbiter ports;
  std::int64_t semaphore_latency = 0;
  std::int64_t activation_table_load = 0;
  std::int64_t core_barrier = 0;
  std::int64_t tensor_wait = 0;
  std::int64_t clock_grid = 0;
  bool issue_ahead = false;
};

/// One sequencer with its data path: a state machine that executes its queue in order. It does not
/// wait: it says when it acts next, and is asked to act when no engine of the machine has an
/// earlier time, so that whatever it reads is final.
class Engine final : public Semaphore::Waiter {
 public:
  /// `number`: its place among all engines of the machine; breaks ties.
  Engine(isa::Engine which, int number, EngineShared& shared);

  void configure(const CoreConfig& core) { pipeline_.configure(core.tensor); }
  /// `peer`: the same engine of the pair's other core, or null. The queue must outlive the run.
  void start(const ResolvedQueue& queue, Engine* peer, std::int64_t now);

  /// When it acts next; kNever: it is finished, or waits for another.
  [[nodiscard]] std::int64_t next_time() const { return next_; }
  /// Acts once, and again as long as it is its turn. REQUIRES: next_time() != kNever.
  void act();

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool finished() const {
    return pc_ == queue_->ops.size() && unanswered_.empty() && mismatch_.empty();
  }
  /// When the last result is there. REQUIRES: finished.
  [[nodiscard]] std::int64_t end() const { return std::max({local_, unit_free_, completion_}); }
  /// Why an engine never finished: "tensor waits at instruction 5 for semaphore 3 >= 1 (holds 0)".
  [[nodiscard]] std::string where() const;

  // For the fast-forward of loops.
  struct OpenLoop {
    std::uint32_t loop = 0;  ///< index in ResolvedQueue::loops
    std::int64_t remaining = 0;
    bool operator==(const OpenLoop&) const = default;
  };
  [[nodiscard]] const ResolvedQueue& queue() const { return *queue_; }
  [[nodiscard]] std::span<OpenLoop> open_loops() {
    return {loops_.data(), static_cast<std::size_t>(depth_)};
  }
  [[nodiscard]] std::size_t position() const { return pc_; }
  [[nodiscard]] std::int64_t local_time() const { return local_; }
  /// All that decides about its future, except for the open loops; times relative to `now`.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const;

 private:
  void posted() override;
  void plan();
  void step();
  [[nodiscard]] bool take_semaphore(const ResolvedOp& op);
  void execute(const ResolvedOp& op);
  void compute(const ResolvedOp& op);
  void stream(const ResolvedOp& op, const TensorPipeline::Slot& slot);
  void start_dma(const ResolvedOp& op);
  void exchange(const DmaRequest& request, std::size_t queue);
  void submit(const DmaRequest& request, std::size_t queue);
  void reach_barrier();
  void leave_barrier(std::int64_t time);
  void post(const ResolvedOp& op);
  void note(std::int64_t start, std::int64_t end);
  void close_loop(const ResolvedOp& op);

  const isa::Engine which_;
  const int track_;
  const int number_;
  EngineShared& shared_;
  Engine* peer_ = nullptr;
  TensorPipeline pipeline_;
  const ResolvedQueue* queue_;
  std::size_t pc_ = 0;
  std::uint32_t waits_done_ = 0;  ///< of the instruction at `pc_`
  std::int64_t next_ = kNever;
  std::int64_t local_ = 0;       ///< the sequencer looks at the next instruction
  std::int64_t unit_free_ = 0;   ///< the data path takes the next instruction that needs it
  std::int64_t completion_ = 0;  ///< results are posted in order: not before the last one
  std::array<std::int64_t, kProducerWindow>
      results_{};           ///< when those of the last kCompute instructions were there, a ring
  std::size_t newest_ = 0;  ///< of results_
  std::int64_t longest_delay_ = 0;  ///< of any instruction, from a result to the one that reads it
  std::uint8_t table_ = 0;
  bool at_barrier_ = false;
  std::uint64_t dma_count_ = 0;
  std::deque<DmaRequest> unanswered_;  ///< send_recvs that the peer has not met
  std::string mismatch_;               ///< the first two that met and were not equally long
  std::array<OpenLoop, isa::kMaxLoopDepth> loops_{};
  int depth_ = 0;
};

}  // namespace trellis::sim
