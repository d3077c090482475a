#include "sim/neuron_core/resolved_queue.h"

#include "base/check.h"
#include "sim/neuron_core/engine_cost.h"

namespace trellis::sim {
namespace {

using isa::Engine;
using isa::Instruction;
using isa::Opcode;

class Resolver {
 public:
  Resolver(const isa::Program& program, const isa::Segment& segment, const CoreConfig& core) : program_(program), core_(core) {
    for (const auto& queue : segment.queues) {
      for (const auto& instruction : queue) {
        for (const auto& wait : instruction.waits) is_awaited(wait.id) = true;
      }
    }
  }

  ResolvedQueue run(const std::vector<Instruction>& queue, Engine engine) {
    queue_ = {};
    engine_ = engine;
    loops_.clear();
    last_ = nullptr;
    queue_.ops.reserve(queue.size());
    for (const Instruction& i : queue) resolve(i);
    return std::move(queue_);
  }

 private:
  /// A loop that is open while its body is read: for the dependency of its first instruction on its last.
  struct OpenLoop {
    std::uint32_t op = 0;
    const Instruction* first = nullptr;
    std::uint32_t first_op = 0;
  };

  std::vector<bool>::reference is_awaited(std::uint16_t id) {
    if (awaited_.size() <= id) awaited_.resize(id + 1u);
    return awaited_[id];
  }

  void resolve(const Instruction& i) {
    ResolvedOp op;
    op.kernel = i.kernel;
    add_semaphores(op, i);
    switch (i.opcode) {
      case Opcode::kSemaphore: break;
      case Opcode::kLoop:
        op.kind = ResolvedOp::Kind::kLoop;
        op.count = i.count;
        loops_.push_back({static_cast<std::uint32_t>(queue_.ops.size())});
        break;
      case Opcode::kEndLoop: close_loop(op); break;
      case Opcode::kDma:
      case Opcode::kDmaGather:
      case Opcode::kDmaScatterAdd: resolve_dma(op, i); break;
      default: resolve_compute(op, i); break;
    }
    queue_.ops.push_back(op);
  }

  void add_semaphores(ResolvedOp& op, const Instruction& i) {
    op.first_wait = static_cast<std::uint32_t>(queue_.waits.size());
    op.num_waits = static_cast<std::uint16_t>(i.waits.size());
    queue_.waits.insert(queue_.waits.end(), i.waits.begin(), i.waits.end());
    op.first_update = static_cast<std::uint32_t>(queue_.updates.size());
    for (const auto& update : i.updates) {
      if (is_awaited(update.id)) queue_.updates.push_back(update);
    }
    op.num_updates = static_cast<std::uint16_t>(queue_.updates.size() - op.first_update);
  }

  void close_loop(ResolvedOp& op) {
    TRELLIS_CHECK(!loops_.empty(), "end_loop without loop: validate() was not called");
    op.kind = ResolvedOp::Kind::kEndLoop;
    op.partner = loops_.back().op;
    if (loops_.back().first != nullptr && last_ != nullptr && depends_on(*loops_.back().first, *last_, program_)) {
      queue_.ops[loops_.back().first_op].dependent = true;
    }
    loops_.pop_back();
  }

  void resolve_dma(ResolvedOp& op, const Instruction& i) {
    op.kind = ResolvedOp::Kind::kDma;
    op.dma_queue = static_cast<std::uint8_t>(i.dma_queue);
    op.partner = static_cast<std::uint32_t>(queue_.transfers.size());
    op.occupancy = core_.dma.trigger_time.value;
    queue_.transfers.push_back(dma_transfer(i, program_, core_.dma, core_.limits));
  }

  void resolve_compute(ResolvedOp& op, const Instruction& i) {
    const EngineCost cost = engine_cost(i, engine_, program_, core_);
    op.occupancy = cost.occupancy.value;
    op.latency = cost.latency.value;
    if (engine_ == Engine::kTensor) {
      // Products accumulate in PSUM without a stall, and weights come from SBUF: the array has no dependency of its own.
      op.kind = i.opcode == Opcode::kLoadStationary ? ResolvedOp::Kind::kLoadStationary : ResolvedOp::Kind::kMatmul;
      return;
    }
    op.kind = ResolvedOp::Kind::kCompute;
    op.table = activation_table(i, engine_);
    op.dependent = last_ != nullptr && depends_on(i, *last_, program_);
    for (auto& loop : loops_) {
      if (loop.first == nullptr) {
        loop.first = &i;
        loop.first_op = static_cast<std::uint32_t>(queue_.ops.size());
      }
    }
    last_ = &i;
  }

  const isa::Program& program_;
  const CoreConfig& core_;
  std::vector<bool> awaited_;
  ResolvedQueue queue_;
  Engine engine_ = Engine::kTensor;
  std::vector<OpenLoop> loops_;
  const Instruction* last_ = nullptr;  ///< the compute instruction before
};

}  // namespace

std::vector<ResolvedQueue> resolve_segment(const isa::Program& program, const isa::Segment& segment, const CoreConfig& core) {
  Resolver resolver(program, segment, core);
  std::vector<ResolvedQueue> queues;
  for (int e = 0; e < isa::kNumEngines; ++e) queues.push_back(resolver.run(segment.queues[e], static_cast<Engine>(e)));
  return queues;
}

}  // namespace trellis::sim
