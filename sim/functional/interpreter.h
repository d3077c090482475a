#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/functional/exact.h"
#include "sim/functional/hazards.h"

/// Executes a Program on real numbers, in some legal interleaving of its queues and DMA rings.
namespace trellis::sim::functional {

struct Options {
  /// 0: engines alternate; others: the next actor is drawn at random, transfers are delayed as far
  /// as semaphores allow.
  std::uint32_t seed = 0;
  Arithmetic arithmetic = Arithmetic::kFp32;
  bool exact = false;    ///< every instruction element by element; kDouble always is
  bool hazards = false;  ///< find races and reads of what was never written
};

class Interpreter {
 public:
  /// The program outlives the interpreter, and `isa::validate` finds nothing in it.
  Interpreter(const isa::Program& program, const isa::Limits& limits, Options options);

  /// The first values of an HBM buffer. Throws std::runtime_error when they do not fit.
  void write(std::uint32_t buffer, DType dtype, const Values& values);
  [[nodiscard]] Values read(std::uint32_t buffer, DType dtype, std::int64_t count) const {
    return memory_.read(buffer, dtype, count);
  }
  /// Throws std::runtime_error on a deadlock, when semaphores are not 0 at a segment's end, and for
  /// instructions without defined numbers.
  void run();
  /// Empty unless Options::hazards.
  [[nodiscard]] std::vector<Hazard> hazards() const {
    return finder_ ? finder_->found() : std::vector<Hazard>{};
  }

 private:
  struct Frame {
    std::size_t begin = 0;
    std::int64_t iteration = 0, count = 1;
  };
  struct Sequencer {
    std::size_t pc = 0;
    std::vector<Frame> loops;
    EngineState state;
    std::vector<std::int64_t> executed;
  };
  struct Transfer {
    isa::Instruction instruction;  ///< operands resolved to plain offsets
    Site site;
  };
  struct Ring {
    std::vector<Transfer> pending;
    std::size_t head = 0;
  };

  void run_segment(std::size_t number);
  /// Tries actors from `start` on; false: none can go on.
  bool step_any(const isa::Segment& segment, int start);
  bool step_engine(const isa::Segment& segment, int engine);
  void control(const isa::Instruction& instruction, Sequencer& sequencer);
  bool step_ring(int ring);
  [[nodiscard]] int next_actor();
  [[nodiscard]] bool finished(const isa::Segment& segment) const;
  [[nodiscard]] bool ready(const isa::Instruction& instruction) const;
  void take(int actor, const isa::Instruction& instruction);
  void post(int actor, const isa::Instruction& instruction);
  /// The offsets in the table to which the indices of a gather or scatter lead.
  [[nodiscard]] std::vector<std::int64_t> named_rows(const isa::Instruction& instruction) const;
  void execute(int actor, Site site, const isa::Instruction& instruction, EngineState& state);

  const isa::Program& program_;
  Options options_;
  Memory memory_;
  std::optional<HazardFinder> finder_;
  std::uint64_t random_;
  int turn_ = 0;
  std::size_t segment_ = 0;
  std::vector<std::int64_t> semaphores_;
  std::vector<Sequencer> engines_;
  std::vector<Ring> rings_;
  std::int64_t pending_ = 0;  ///< transfers of all rings
};

}  // namespace trellis::sim::functional
