#pragma once

#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// The properties that decide how fast VectorE, ScalarE and GpSimd stream an instruction's
/// operands. Per-partition columns next to them do not count.
struct OperandStream {
  double n = 1;              ///< elements per partition of the longest operand
  double widest_mode = 1;    ///< the widest perf mode that all dtypes allow
  bool sixteen_bit = true;   ///< all bf16 or fp16
  bool four_byte = false;    ///< some fp32
  bool contiguous = true;    ///< innermost dimension of each
  bool wide_stride = false;  ///< an innermost stride beyond the fast one
  int psum_operands = 0;
  int psum_sources = 0;
  int sources = 0;
};

[[nodiscard]] OperandStream operand_stream(const isa::Instruction& instruction, isa::Engine engine,
                                           const isa::Program& program, const CoreConfig& core);

/// The perf mode in which the instruction runs: 4, 2 or, without one, 1 (hardware.md §2.3: chosen
/// by the hardware).
[[nodiscard]] double perf_mode(const isa::Instruction& instruction, isa::Engine engine,
                               const isa::Program& program, const CoreConfig& core);
[[nodiscard]] double perf_mode(const isa::Instruction& instruction, isa::Engine engine,
                               const OperandStream& stream);

}  // namespace trellis::sim
