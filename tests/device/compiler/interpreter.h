#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/config/system_config.h"
#include "sim/isa/program.h"

/// Executes a Program on real numbers, in some legal interleaving of its queues and DMA rings.
namespace trellis::device::testing {

using sim::isa::DType;

constexpr DType kF = DType::kFp32, kB = DType::kBf16;

/// Values of an HBM buffer as a dtype reads them.
using Values = std::vector<double>;

class Interpreter {
 public:
  /// seed 0: engines take turns; others: the next actor is drawn at random, transfers are delayed
  /// as far as semaphores allow.
  Interpreter(const sim::isa::Program& program, const sim::isa::Limits& limits, std::uint32_t seed);

  void write(std::uint32_t buffer, DType dtype, const Values& values);
  [[nodiscard]] Values read(std::uint32_t buffer, DType dtype, std::int64_t count) const;
  /// Throws std::runtime_error on a deadlock, and when semaphores are not 0 at a segment's end.
  void run();

 private:
  struct Frame {
    std::size_t begin = 0;
    std::int64_t iteration = 0, count = 1;
  };
  struct EngineState {
    std::size_t pc = 0;
    std::vector<Frame> loops;
    std::vector<double> weights;  ///< the array's contents, [partition][column]
    std::int64_t weight_columns = 0;
    std::vector<std::int64_t> executed;
    std::uint64_t draws = 0;
    std::int32_t draw();  ///< the engine's next random integer
  };
  struct Transfer {
    sim::isa::Instruction instruction;  ///< operands resolved to plain offsets
  };
  struct Ring {
    std::vector<Transfer> pending;
    std::size_t head = 0;
  };

  void run_segment(const sim::isa::Segment& segment);
  bool step_engine(const sim::isa::Segment& segment, int engine);
  bool step_ring(int ring);
  [[nodiscard]] bool finished(const sim::isa::Segment& segment) const;
  [[nodiscard]] bool ready(const sim::isa::Instruction& instruction) const;
  void take(const sim::isa::Instruction& instruction);
  void post(const sim::isa::Instruction& instruction);
  sim::isa::Instruction resolve(const sim::isa::Instruction& instruction, const EngineState& state,
                                std::int64_t executed) const;
  void execute(const sim::isa::Instruction& instruction, EngineState& state);
  void execute_dma(const sim::isa::Instruction& instruction);
  void execute_elementwise(const sim::isa::Instruction& instruction, EngineState& state);
  /// One partition of it: `row` has the first operand's values, then the results.
  static void elementwise_row(const sim::isa::Instruction& instruction, EngineState& state,
                              std::int64_t partition, const Values& operands,
                              std::span<double> row);
  void execute_scan(const sim::isa::Instruction& i);
  void execute_reduce(const sim::isa::Instruction& instruction);
  void transpose(const sim::isa::Instruction& instruction);
  void execute_quantize(const sim::isa::Instruction& instruction);
  void execute_eight(const sim::isa::Instruction& instruction);
  /// src0 as the array reads it, [contraction][column]; packed MX elements are four rows, times
  /// their scales in src1.
  [[nodiscard]] Values contraction_rows(const sim::isa::Instruction& instruction) const;
  void load_stationary(const sim::isa::Instruction& instruction, EngineState& state) const;
  void execute_matmul(const sim::isa::Instruction& instruction, const EngineState& state);

  /// The places of an access pattern's elements, found once for all partitions.
  class View;
  [[nodiscard]] View view(const sim::isa::AccessPattern& a) const;
  [[nodiscard]] double get(const sim::isa::AccessPattern& a, std::int64_t partition,
                           std::int64_t element) const;
  void set(const sim::isa::AccessPattern& a, std::int64_t partition, std::int64_t element,
           double value);
  [[nodiscard]] std::uint8_t* address(const sim::isa::AccessPattern& a, std::int64_t partition,
                                      std::int64_t element) const;

  const sim::isa::Program& program_;
  std::uint64_t random_;
  bool shuffled_;
  std::vector<std::vector<std::uint8_t>> hbm_;
  mutable std::vector<std::uint8_t> sbuf_, psum_;
  std::int64_t sbuf_row_, psum_row_;
  std::vector<std::int64_t> semaphores_;
  std::vector<EngineState> engines_;
  std::vector<Ring> rings_;
  std::int64_t pending_ = 0;  ///< transfers of all rings
};

}  // namespace trellis::device::testing
