#include "sim/neuron_core/resolved_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sim/neuron_core/engine_cost.h"

namespace trellis::sim {
namespace {

using isa::Engine;
using isa::Instruction;
using isa::Opcode;

class Resolver {
 public:
  Resolver(const isa::Program& program, const isa::Segment& segment, const CoreConfig& core)
      : program_(program), core_(core) {
    for (const auto& queue : segment.queues) {
      for (const auto& instruction : queue) {
        for (const auto& wait : instruction.waits) is_awaited(wait.id) = true;
      }
    }
  }

  ResolvedQueue run(const std::vector<Instruction>& queue, Engine engine) {
    queue_ = {};
    engine_ = engine;
    after_software_ = false;
    loops_.clear();
    computes_.clear();
    queue_.ops.reserve(queue.size());
    for (const Instruction& i : queue) resolve(i);
    return std::move(queue_);
  }

 private:
  /// A loop that is open while its body is read.
  struct OpenLoop {
    std::uint32_t loop = 0;
    std::int64_t count = 1;
    std::size_t first_compute = 0;  ///< of its body, in computes_
  };
  struct Compute {
    const Instruction* instruction = nullptr;
    std::uint32_t op = 0;
  };

  std::vector<bool>::reference is_awaited(std::uint16_t id) {
    if (awaited_.size() <= id) awaited_.resize(id + 1u);
    return awaited_[id];
  }

  void resolve(const Instruction& i) {
    ResolvedOp op;
    op.kernel = i.kernel;
    add_semaphores(op, i);
    const bool after_software = std::exchange(after_software_, false);
    switch (i.opcode) {
      case Opcode::kSemaphore: op.occupancy = core_.control_time.value; break;
      case Opcode::kCoreBarrier: op.kind = ResolvedOp::Kind::kCoreBarrier; break;
      case Opcode::kLoop: open_loop(op, i.count); break;
      case Opcode::kEndLoop: close_loop(op); break;
      case Opcode::kDma:
      case Opcode::kDmaGather:
      case Opcode::kDmaScatterAdd:
      case Opcode::kDmaTranspose:
      case Opcode::kSendRecv:
        after_software_ = after_software;
        resolve_dma(op, i);
        break;
      default: resolve_compute(op, i); break;
    }
    if (!loops_.empty()) count_in(queue_.loops[loops_.back().loop], i.kernel, i.kernel, 1);
    queue_.ops.push_back(op);
  }

  static void count_in(LoopBody& body, std::uint32_t first_kernel, std::uint32_t last_kernel,
                       std::int64_t work) {
    body.first_kernel = std::min(body.first_kernel, first_kernel);
    body.last_kernel = std::max(body.last_kernel, last_kernel);
    body.work += work;
  }

  void open_loop(ResolvedOp& op, std::int64_t count) {
    op.kind = ResolvedOp::Kind::kLoop;
    op.count = count;
    op.partner = static_cast<std::uint32_t>(queue_.loops.size());
    loops_.push_back({op.partner, count, computes_.size()});
    queue_.loops.push_back(
        {static_cast<std::uint32_t>(queue_.ops.size()), op.kernel, op.kernel, 0});
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
    op.partner = loops_.back().loop;
    link_iterations(loops_.back().first_compute);
    const LoopBody body = queue_.loops[op.partner];
    const std::int64_t count = loops_.back().count;
    loops_.pop_back();
    if (!loops_.empty())
      count_in(queue_.loops[loops_.back().loop], body.first_kernel, body.last_kernel,
               body.work * count);
  }

  /// The nearest of the last few instructions whose result `i` reads.
  [[nodiscard]] std::uint8_t producer_of(const Instruction& i) const {
    for (std::size_t back = 1; back <= std::min<std::size_t>(kProducerWindow, computes_.size());
         ++back) {
      if (depends_on(i, *computes_[computes_.size() - back].instruction, program_))
        return static_cast<std::uint8_t>(back);
    }
    return 0;
  }

  /// The first instructions of the innermost loop's body may read what its last ones wrote, an
  /// iteration before.
  void link_iterations(std::size_t first) {
    const std::size_t size = computes_.size() - first;
    for (std::size_t at = 0; at < std::min<std::size_t>(kProducerWindow, size); ++at) {
      const Instruction next = in_next_iteration(*computes_[first + at].instruction);
      std::uint8_t& producer = queue_.ops[computes_[first + at].op].producer;
      for (std::size_t back = at + 1; back <= kProducerWindow && back <= size + at; ++back) {
        if (producer != 0 && producer < back) break;
        if (depends_on(next, *computes_[first + size + at - back].instruction, program_)) {
          producer = static_cast<std::uint8_t>(back);
          break;
        }
      }
    }
  }

  [[nodiscard]] Instruction in_next_iteration(Instruction i) const {
    const std::size_t depth = std::min<std::size_t>(loops_.size(), isa::kMaxLoopDepth) - 1;
    for (isa::AccessPattern* a : {&i.dst, &i.src0, &i.src1, &i.dst1})
      a->offset += a->loop_stride[depth] + (a->rotate_count > 1 ? a->rotate_stride : 0);
    return i;
  }

  void resolve_dma(ResolvedOp& op, const Instruction& i) {
    op.kind = i.opcode == Opcode::kSendRecv ? ResolvedOp::Kind::kSendRecv : ResolvedOp::Kind::kDma;
    op.dma_queue = static_cast<std::uint8_t>(i.dma_queue);
    op.partner = static_cast<std::uint32_t>(queue_.transfers.size());
    DmaTransfer t = dma_transfer(i, engine_, program_, core_.dma, core_.limits);
    const bool software =
        isa::DmaDescriptors::kSoftware == resolve_descriptors(i, engine_, core_.dma);
    if (software && after_software_ && i.waits.empty()) follow_software(t, core_.dma);
    after_software_ = software;
    op.occupancy = t.trigger.value;
    op.preparation = t.preparation.value;
    queue_.transfers.push_back(t);
  }

  void resolve_compute(ResolvedOp& op, const Instruction& i) {
    const EngineCost cost = engine_cost(i, engine_, program_, core_);
    op.occupancy = cost.occupancy.value;
    op.latency = cost.latency.value;
    op.overhead = cost.overhead.value;
    if (engine_ == Engine::kTensor) {
      // Products accumulate in PSUM without a stall, and weights come from SBUF: the array has no
      // its own dependency.
      op.kind = i.opcode == Opcode::kLoadStationary ? ResolvedOp::Kind::kLoadStationary
                                                    : ResolvedOp::Kind::kMatmul;
      return;
    }
    op.kind = ResolvedOp::Kind::kCompute;
    op.dependent_delay = cost.dependent_delay.value;
    op.ports = shared_ports(i, engine_, program_, core_);
    op.table = activation_table(i, engine_);
    op.producer = producer_of(i);
    computes_.push_back({&i, static_cast<std::uint32_t>(queue_.ops.size())});
  }

  const isa::Program& program_;
  const CoreConfig& core_;
  std::vector<bool> awaited_;
  ResolvedQueue queue_;
  Engine engine_ = Engine::kTensor;
  bool after_software_ = false;  ///< the instruction before started a transfer made by software
  std::vector<OpenLoop> loops_;
  std::vector<Compute> computes_;  ///< of the queue, in order
};

}  // namespace

std::vector<ResolvedQueue> resolve_segment(const isa::Program& program, const isa::Segment& segment,
                                           const CoreConfig& core,
                                           std::span<const GivenTransfer> given) {
  Resolver resolver(program, segment, core);
  std::vector<ResolvedQueue> queues;
  for (int e = 0; e < isa::kNumEngines; ++e)
    queues.push_back(resolver.run(segment.queues[e], static_cast<Engine>(e)));
  for (const GivenTransfer& each : given) {
    ResolvedQueue& queue = queues[static_cast<std::size_t>(each.engine)];
    TRELLIS_CHECK(
        each.index < queue.ops.size() && queue.ops[each.index].kind == ResolvedOp::Kind::kDma,
        "a given transfer is no dma instruction of its queue");
    queue.transfers[queue.ops[each.index].partner].given = each.time;
  }
  return queues;
}

}  // namespace trellis::sim
