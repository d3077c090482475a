#include "sim/functional/interpreter.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "sim/functional/tiles.h"

namespace trellis::sim::functional {

using isa::AccessPattern;
using isa::Instruction;
using isa::Opcode;

namespace {

/// Loops and rotation become plain offsets.
template <typename Frames>
Instruction resolve(const Instruction& instruction, const Frames& loops, std::int64_t executed) {
  Instruction out = instruction;
  for (AccessPattern* a : {&out.dst, &out.src0, &out.src1, &out.dst1}) {
    for (std::size_t d = 0; d < loops.size(); ++d)
      a->offset += a->loop_stride[d] * loops[d].iteration;
    a->offset += a->rotate_stride * (executed % a->rotate_count);
  }
  if (out.overwrite_first && !loops.empty() && loops.back().iteration == 0) out.accumulate = false;
  return out;
}

bool is_control(Opcode opcode) {
  return opcode == Opcode::kLoop || opcode == Opcode::kEndLoop || opcode == Opcode::kSemaphore;
}

}  // namespace

Interpreter::Interpreter(const isa::Program& program, const isa::Limits& limits, Options options)
    : program_(program),
      options_(options),
      memory_(program, limits),
      random_(options.seed * 2654435761u + 88172645463325252ull),
      semaphores_(static_cast<std::size_t>(limits.semaphores)),
      rings_(isa::kNumEngines * isa::kNumDmaQueues) {
  if (options.hazards) finder_.emplace(program, limits);
}

void Interpreter::write(std::uint32_t buffer, DType dtype, const Values& values) {
  memory_.write(buffer, dtype, values);
  if (finder_) finder_->mark_written(buffer);
}

void Interpreter::run() {
  for (std::size_t s = 0; s < program_.segments.size(); ++s) run_segment(s);
}

bool Interpreter::finished(const isa::Segment& segment) const {
  if (pending_ > 0) return false;
  for (std::size_t e = 0; e < isa::kNumEngines; ++e) {
    if (engines_[e].pc < segment.queues[e].size()) return false;
  }
  return true;
}

int Interpreter::next_actor() {
  if (options_.seed == 0) return turn_++ % kActors;
  random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
  // Engines run far ahead of the transfers, most of the time.
  return random_ % 16 == 0 ? static_cast<int>(random_ / 16 % static_cast<std::uint64_t>(kActors))
                           : static_cast<int>(random_ / 16 % isa::kNumEngines);
}

bool Interpreter::step_any(const isa::Segment& segment, int start) {
  for (int i = 0; i < kActors; ++i) {
    const int actor = (start + i) % kActors;
    if (actor < isa::kNumEngines ? step_engine(segment, actor)
                                 : step_ring(actor - isa::kNumEngines))
      return true;
  }
  return false;
}

void Interpreter::run_segment(std::size_t number) {
  const isa::Segment& segment = program_.segments[number];
  segment_ = number;
  turn_ = 0;
  engines_.assign(isa::kNumEngines, {});
  if (finder_) finder_->begin_segment(number);
  for (std::size_t e = 0; e < isa::kNumEngines; ++e) {
    engines_[e].executed.assign(segment.queues[e].size(), 0);
    if (finder_ && segment.queues[e].empty()) finder_->finish(static_cast<int>(e));
  }
  while (!finished(segment)) {
    if (step_any(segment, next_actor())) continue;
    std::string where;
    for (std::size_t e = 0; e < isa::kNumEngines; ++e)
      where += fmt::format("{} at {}/{}; ", name(static_cast<isa::Engine>(e)), engines_[e].pc,
                           segment.queues[e].size());
    throw std::runtime_error("deadlock: " + where);
  }
  for (std::size_t s = 0; s < semaphores_.size(); ++s) {
    if (semaphores_[s] != 0)
      throw std::runtime_error(fmt::format("semaphore {} is left at {}", s, semaphores_[s]));
  }
}

bool Interpreter::ready(const Instruction& instruction) const {
  for (const auto& wait : instruction.waits) {
    if (semaphores_[wait.id] < wait.value) return false;
  }
  return true;
}

void Interpreter::take(int actor, const Instruction& instruction) {
  for (const auto& wait : instruction.waits) semaphores_[wait.id] -= wait.value;
  if (finder_) finder_->wait(actor, instruction);
}

void Interpreter::post(int actor, const Instruction& instruction) {
  for (const auto& update : instruction.updates) semaphores_[update.id] += update.value;
  if (finder_) finder_->post(actor, instruction);
}

std::vector<std::int64_t> Interpreter::named_rows(const Instruction& instruction) const {
  const bool gather = instruction.opcode == Opcode::kDmaGather;
  if (!gather && instruction.opcode != Opcode::kDmaScatterAdd) return {};
  const AccessPattern &table = gather ? instruction.src0 : instruction.dst,
                      &indices = instruction.src1;
  std::vector<std::int64_t> rows;
  for (std::int64_t p = 0; p < indices.num_partitions; ++p) {
    for (std::int64_t e = 0; e < indices.elements_per_partition(); ++e) {
      const double index = memory_.get(indices, p, e);
      if (std::isfinite(index))
        rows.push_back(static_cast<std::int64_t>(index) * table.partition_stride);
    }
  }
  return rows;
}

void Interpreter::execute(int actor, Site site, const Instruction& instruction,
                          EngineState& state) {
  if (finder_) finder_->access(actor, site, instruction, named_rows(instruction));
  const bool exact = options_.exact || options_.arithmetic == Arithmetic::kDouble;
  if (exact || !execute_tiles(instruction, state, memory_))
    execute_exact(instruction, state, memory_, options_.arithmetic);
}

void Interpreter::control(const Instruction& instruction, Sequencer& sequencer) {
  if (instruction.opcode == Opcode::kLoop) {
    sequencer.loops.push_back({sequencer.pc, 0, instruction.count});
  } else if (instruction.opcode == Opcode::kEndLoop) {
    Frame& loop = sequencer.loops.back();
    if (++loop.iteration < loop.count) {
      sequencer.pc = loop.begin;
    } else {
      sequencer.loops.pop_back();
    }
  }
}

bool Interpreter::step_engine(const isa::Segment& segment, int engine) {
  Sequencer& sequencer = engines_[static_cast<std::size_t>(engine)];
  const auto& queue = segment.queues[static_cast<std::size_t>(engine)];
  if (sequencer.pc >= queue.size()) return false;
  const Instruction& instruction = queue[sequencer.pc];
  if (!ready(instruction)) return false;
  take(engine, instruction);
  const Site site{segment_, static_cast<isa::Engine>(engine), sequencer.pc};
  if (is_control(instruction.opcode)) {
    if (instruction.opcode == Opcode::kSemaphore) post(engine, instruction);
    control(instruction, sequencer);
  } else {
    Instruction plain = resolve(instruction, sequencer.loops, sequencer.executed[sequencer.pc]++);
    if (is_dma(plain.opcode)) {
      const int ring = engine * isa::kNumDmaQueues + static_cast<int>(plain.dma_queue);
      rings_[static_cast<std::size_t>(ring)].pending.push_back({std::move(plain), site});
      ++pending_;
      if (finder_) finder_->issue(engine, isa::kNumEngines + ring);
    } else {
      execute(engine, site, plain, sequencer.state);
      post(engine, plain);
    }
  }
  if (++sequencer.pc == queue.size() && finder_) finder_->finish(engine);
  return true;
}

bool Interpreter::step_ring(int index) {
  Ring& ring = rings_[static_cast<std::size_t>(index)];
  if (ring.head == ring.pending.size()) return false;
  const Transfer transfer = std::move(ring.pending[ring.head++]);
  if (ring.head == ring.pending.size()) ring = {};
  --pending_;
  const int actor = isa::kNumEngines + index;
  if (finder_) finder_->start(actor);
  EngineState none;
  execute(actor, transfer.site, transfer.instruction, none);
  post(actor, transfer.instruction);
  return true;
}

}  // namespace trellis::sim::functional
