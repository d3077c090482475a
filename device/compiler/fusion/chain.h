#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"

namespace trellis::device {

/// A fused chain of element-wise operations and reductions over one iteration space.
///
/// Values live in SBUF; only `outputs` are written to HBM. A value is "full" (one element per point
/// of the space), or has stride 0 over the reduced dimensions (one element per row): a reduction's
/// result, a broadcast input.
struct Chain {
  struct Value {
    isa::DType dtype = isa::DType::kFp32;
    bool input = false;
    std::uint32_t buffer = 0;  ///< inputs: where from
    std::int64_t offset = 0;
    std::vector<std::int64_t> strides;  ///< inputs: over Chain::sizes
    bool narrow = false;  ///< made inside an operation on bf16 tensors: it may be bf16 too
  };
  struct Step {
    isa::Opcode opcode = isa::Opcode::kTensorCopy;
    isa::AluOp alu = isa::AluOp::kNone, alu2 = isa::AluOp::kNone;
    isa::Activation activation = isa::Activation::kIdentity;
    double imm0 = 0, imm1 = 0;
    int dst = -1, a = -1, b = -1;  ///< values
  };
  struct Output {
    int value = -1;
    std::uint32_t buffer = 0;
    isa::DType dtype = isa::DType::kFp32;
    std::int64_t offset = 0;
    std::vector<std::int64_t> strides;
  };

  std::vector<std::int64_t> sizes;
  std::vector<bool>
      reduced;  ///< per dimension: the reductions run over these; empty or all false: none
  std::vector<Value> values;
  std::vector<Step> steps;  ///< in order; kTensorReduce: over all reduced dimensions
  std::vector<Output> outputs;
  std::vector<std::string> names;  ///< of the operations, for the kernel's name
  /// The reduction leaves no long row to stay in SBUF (sum over leading dimensions, or over
  /// everything): `steps` up to `split` make the operands, `column_sums` are summed, and the steps
  /// from `split` on work on the small results.
  bool terminal = false;
  std::size_t split = 0;
};

/// a ⊕ b with the operands exchanged; kNone: there is no such operation.
[[nodiscard]] isa::AluOp exchanged(isa::AluOp alu);

}  // namespace trellis::device
