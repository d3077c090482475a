#include "device/kernels/nki/lowering.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "device/compiler/emit/program_builder.h"

namespace trellis::device::nki {
namespace {

using isa::Engine;
using isa::MemorySpace;
using isa::Opcode;

int depth_of(const std::vector<Step>& steps) {
  int depth = 0;
  for (const Step& step : steps) {
    if (step.loop != 0) depth = std::max(depth, 1 + depth_of(step.body));
  }
  return depth;
}

/// Loops with a ring that is used in loops inside: they alternate between two slots by parity,
/// which takes one more loop. Inner ones first: they run most often.
class ParityLoops {
 public:
  ParityLoops(const Document& document, const Placement& placement) {
    for (std::size_t t = 0; t < document.tensors.size(); ++t) {
      const Place& p = placement.places[t];
      if (p.used && p.depth == 2 && !p.direct) wanted_.insert(document.tensors[t].home);
    }
    for (const Step& step : document.body) choose(step, 0);
  }
  [[nodiscard]] bool has(int loop) const { return chosen_.contains(loop); }

 private:
  /// Loops inside, the doubled ones twice; `outer`: around it.
  int choose(const Step& step, int outer) {
    if (step.loop == 0) return 0;
    int inside = 0;
    for (const Step& inner : step.body) inside = std::max(inside, choose(inner, outer + 1));
    if (wanted_.contains(step.loop) && step.count > 1 && outer + inside + 2 <= isa::kMaxLoopDepth) {
      chosen_.insert(step.loop);
      return inside + 2;
    }
    return inside + 1;
  }
  std::set<int> wanted_, chosen_;
};

class Lowering {
 public:
  Lowering(const Document& document, const sim::CoreConfig& core)
      : document_(document),
        semaphores_(core.limits.semaphores),
        builder_(document.kernel, core),
        tiles_(document.tensors.size(), isa::kNone) {
    out_.placement = place_tiles(document, core.limits);
  }

  Lowered run() {
    add_buffers();
    const std::uint32_t whole = builder_.add_kernel({document_.kernel, 0, 0, false});
    Phase phase(whole);
    phase_ = &phase;
    order_hbm();
    const ParityLoops parity(document_, out_.placement);
    parity_ = &parity;
    make_tiles(0);
    for (const Step& step : document_.body) emit(step);
    check_semaphores(phase);
    builder_.append(std::move(phase));
    out_.program = builder_.finish();
    return std::move(out_);
  }

 private:
  /// A kernel of many loops one after the other can need more than there are.
  void check_semaphores(Phase phase) const {
    phase.resolve();
    const auto needed = static_cast<int>(plan_sync(phase).waiter.size());
    const int there = semaphores_ - ProgramBuilder::kOwnSemaphores;
    if (needed <= there) return;
    throw ConfigError(fmt::format(
        "{}: its loops need {} semaphores to keep their order, and a core has {} for them: fewer "
        "loops after one another (unrolled here: {}), or several kernels",
        document_.kernel, needed, there, fmt::join(document_.unrolled, ", ")));
  }

  void add_buffers() {
    out_.buffers.assign(document_.tensors.size(), isa::kNone);
    std::int32_t slot = 0;
    for (std::size_t t = 0; t < document_.tensors.size(); ++t) {
      const Tensor& tensor = document_.tensors[t];
      if (tensor.space != MemorySpace::kHbm) continue;
      const std::string name = tensor.name.empty() ? tensor.line : tensor.name;
      out_.buffers[t] =
          builder_.add_hbm(name, tensor.bytes, tensor.kind == "scratch" ? -1 : slot++);
    }
  }

  void note_uses(const std::vector<Step>& steps, std::map<int, int>& uses) const {
    for (const Step& step : steps) {
      note_uses(step.body, uses);
      for (int r = 0; r < 4; ++r) {
        const Operand& o = step.operands[static_cast<std::size_t>(r)];
        if (o.present()) uses[o.tensor] |= r == kDst || r == kDst1 ? 1 : 2;
      }
    }
  }

  /// Buffers of HBM that a kernel writes and reads again keep that order, as tiles do.
  void order_hbm() {
    std::map<int, int> uses;
    note_uses(document_.body, uses);
    for (const auto& [tensor, kinds] : uses) {
      const auto t = static_cast<std::size_t>(tensor);
      if (document_.tensors[t].space == MemorySpace::kHbm && kinds == 3)
        tiles_[t] = phase_->ordered(out_.buffers[t]);
    }
  }

  void make_tiles(int home) {
    for (std::size_t t = 0; t < document_.tensors.size(); ++t) {
      const Place& p = out_.placement.places[t];
      if (!p.used || document_.tensors[t].home != home) continue;
      tiles_[t] = phase_->placed(document_.tensors[t].space, p.address, p.slot_bytes, p.depth);
    }
  }

  void emit(const Step& step) {
    if (step.loop == 0) return instruction(step);
    const auto body = [&](Index index) {
      indices_[step.loop] = std::move(index);
      make_tiles(step.loop);
      for (const Step& inner : step.body) emit(inner);
    };
    if (parity_->has(step.loop)) {
      phase_->double_buffered_loop(step.count, body);
    } else {
      phase_->loop(step.count, body);
    }
  }

  [[nodiscard]] Ref ref(const Operand& o) const {
    if (!o.present()) return {};
    const auto t = static_cast<std::size_t>(o.tensor);
    const Tensor& tensor = document_.tensors[t];
    Index offset(o.offset);
    for (const auto& [loop, stride] : o.loops) offset = offset + indices_.at(loop) * stride;
    if (tensor.space == MemorySpace::kHbm) {
      Ref out = Phase::hbm(out_.buffers[t], tensor.dtype, o.partitions, o.partition_stride, o.dims,
                           offset);
      out.order = tiles_[t];
      return out;
    }
    Ref out = phase_->at(tiles_[t], tensor.dtype, o.partitions, o.dims, offset);
    out.pattern.start_partition = static_cast<std::uint16_t>(o.first_partition);
    return out;
  }

  [[nodiscard]] Engine engine_of(const Step& step) const {
    if (const auto named = isa::parse_name<Engine>(step.engine)) return *named;
    if (step.opcode != Opcode::kDma && step.opcode != Opcode::kDmaTranspose) return Engine::kVector;
    return is_store(step) ? Engine::kGpSimd : Engine::kSync;
  }
  [[nodiscard]] bool is_store(const Step& step) const {
    return document_.tensors[static_cast<std::size_t>(step.operands[kDst].tensor)].space ==
           MemorySpace::kHbm;
  }

  std::uint32_t kernel_of(const std::string& line) {
    const auto found = kernels_.find(line);
    if (found != kernels_.end()) return found->second;
    return kernels_[line] = builder_.add_kernel({line, 0, 0, false});
  }

  void instruction(const Step& step) {
    const std::size_t before = phase_->entries().size();
    const Ref dst = ref(step.operands[kDst]), src0 = ref(step.operands[kSrc0]),
              src1 = ref(step.operands[kSrc1]);
    if (step.opcode == Opcode::kMatmul) {
      phase_->matmul(dst, src0, src1, step.accumulate, step.overwrite_first);
    } else {
      isa::Instruction& i = phase_->emit(engine_of(step), step.opcode, dst, src0, src1);
      i.alu = step.alu;
      i.alu2 = step.alu2;
      i.activation = step.activation;
      i.imm0 = step.imm0;
      i.imm1 = step.imm1;
      i.accumulate = step.accumulate;
      if (step.opcode == Opcode::kDma || step.opcode == Opcode::kDmaTranspose)
        i.dma_queue = is_store(step) ? isa::DmaQueue::kStore : isa::DmaQueue::kLoad;
      if (step.operands[kDst1].present()) phase_->sum_rows_into(ref(step.operands[kDst1]));
    }
    for (std::size_t e = before; e < phase_->entries().size(); ++e)
      phase_->entries()[e].instruction.kernel = kernel_of(step.line);
  }

  const Document& document_;
  int semaphores_;
  ProgramBuilder builder_;
  Phase* phase_ = nullptr;
  const ParityLoops* parity_ = nullptr;
  std::vector<TileId> tiles_;
  std::map<int, Index> indices_;  ///< of the loops around
  std::map<std::string, std::uint32_t> kernels_;
  Lowered out_;
};

}  // namespace

Lowered lower(const Document& document, const sim::CoreConfig& core) {
  return Lowering(document, core).run();
}

std::vector<Refusal> refusals(const Document& document, const Lowered& lowered,
                              const isa::Limits& limits) {
  std::vector<Refusal> out;
  std::set<std::pair<std::string, std::string>> seen;
  for (const isa::Violation& v : isa::validate(lowered.program, limits)) {
    const auto& queue =
        lowered.program.segments[v.segment].queues[static_cast<std::size_t>(v.engine)];
    std::string line = document.kernel, text = v.text;
    if (v.index < queue.size()) line = lowered.program.kernels[queue[v.index].kernel].name;
    if (seen.emplace(line, text).second) out.push_back({line, text});
  }
  return out;
}

}  // namespace trellis::device::nki
