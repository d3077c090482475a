#include "sim/neuron_core/engine_cost.h"

#include <algorithm>

#include "sim/isa/extent.h"
#include "sim/neuron_core/operand_stream.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::Opcode;

// TopK works on groups of 16 partitions, those of one GpSimd processor.
constexpr double kTopKPartitions = 16;

bool is_four_byte(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kInt32; }

// Matmuls, transposes and weight loads of fp32 take several passes; one pass takes a cycle for each
// moving column.
double array_passes(DType dtype, const TensorEngineConfig& tensor, bool transpose) {
  if (!is_four_byte(dtype)) return 1;
  return transpose ? tensor.fp32_transpose_passes : tensor.fp32_passes;
}

/// The factor by which products of bf16 and fp8 take longer than those of full tiles of bf16.
double narrow_passes(const Instruction& i, const TensorEngineConfig& tensor) {
  if (is_four_byte(i.src0.dtype)) return 1;
  const double rows = i.src0.num_partitions / 128.0, columns = i.dst.num_partitions / 128.0;
  return (isa::is_fp8(i.src0.dtype) ? tensor.fp8_passes : 1) *
         (1 + tensor.few_rows_passes * (1 - rows) + tensor.few_columns_passes * (1 - columns));
}

/// Columns of the weights: in double-row mode two rows of them lie side by side in a partition.
double weight_columns(const Instruction& load) {
  const auto elements = static_cast<double>(load.src0.elements_per_partition());
  return load.mode == isa::MatmulMode::kDoubleRow ? elements / 2 : elements;
}

bool is_half(isa::MatmulMode mode) {
  return mode == isa::MatmulMode::kFp32Low || mode == isa::MatmulMode::kFp32High;
}

EngineCost stationary_cost(const Instruction& i, const TensorEngineConfig& tensor) {
  double passes = 1;
  if (is_four_byte(i.src0.dtype)) {
    passes =
        i.mode == isa::MatmulMode::kTranspose ? tensor.fp32_passes : tensor.fp32_stationary_passes;
  }
  const double cycles = tensor.stationary_cycles * weight_columns(i) / 128.0 * passes;
  return {cycles_time(is_half(i.mode) ? cycles / 2 : cycles, tensor.clock),
          cycles_time(tensor.stationary_fixed_cycles, tensor.clock), Picoseconds(0),
          Picoseconds(0)};
}

EngineCost tensor_cost(const Instruction& i, const TensorEngineConfig& tensor) {
  if (i.opcode == Opcode::kLoadStationary) return stationary_cost(i, tensor);
  const bool through = i.opcode == Opcode::kTranspose || i.mode == isa::MatmulMode::kTranspose;
  const double passes = array_passes(i.src0.dtype, tensor, through) / (is_half(i.mode) ? 2 : 1);
  double cycles = 0;
  if (i.opcode == Opcode::kTranspose) {
    cycles = std::max<double>(
        i.src0.num_partitions,
        std::min<double>(tensor.min_cycles, static_cast<double>(i.src0.elements_per_partition())));
    cycles *= tensor.transpose_interval;
  } else {
    cycles = std::max<double>(static_cast<double>(i.dst.elements_per_partition()),
                              std::min<double>(tensor.min_cycles, i.dst.num_partitions)) *
             narrow_passes(i, tensor);
  }
  // An fp32 matmul is two instructions ("LO_HI"), unless these are written.
  const bool fp32 = is_four_byte(i.src0.dtype);
  const bool two = fp32 && !is_half(i.mode) && i.mode != isa::MatmulMode::kTranspose;
  const double overhead =
      (fp32 ? tensor.fp32_overhead_cycles : tensor.overhead_cycles) * (two ? 2 : 1);
  const Picoseconds all = cycles_time(cycles * passes + overhead, tensor.clock);
  return {all, cycles_time(tensor.fixed_cycles, tensor.clock), Picoseconds(0),
          all - cycles_time(cycles * passes, tensor.clock)};
}

/// Two streamed operands share VectorE's path to SBUF: two passes, unless one comes from PSUM, a
/// perf mode holds, or, on every generation, bf16 operands are added, subtracted or multiplied in
/// order.
double tensor_tensor_cycles(const Instruction& i, const OperandStream& s) {
  if (s.psum_sources == 1) return s.n;
  const double mode = perf_mode(i, Engine::kVector, s);
  if (mode > 1) return s.n / mode;
  const bool simple =
      i.alu == AluOp::kAdd || i.alu == AluOp::kSubtract || i.alu == AluOp::kMultiply;
  return s.psum_sources == 0 && s.sixteen_bit && s.contiguous && simple ? s.n : 2 * s.n;
}

/// Published for one pair of operations only: (data - scalar) * tensor on bf16 with an even count.
double scalar_tensor_tensor_cycles(const Instruction& i, const OperandStream& s) {
  const bool fast = s.sixteen_bit && i.alu == AluOp::kSubtract && i.alu2 == AluOp::kMultiply &&
                    i.src0.elements_per_partition() % 2 == 0;
  return fast ? s.n : 2 * s.n;
}

/// Reading the accumulator back is what a second result that is a sum costs.
double sum_cycles(const Instruction& i, const InstructionCosts& costs) {
  return i.dst1.present() ? costs.read_accumulator_cycles : 0;
}

double vector_cycles(const Instruction& i, const OperandStream& s, const InstructionCosts& costs) {
  switch (i.opcode) {
    case Opcode::kTensorTensor: return tensor_tensor_cycles(i, s);
    case Opcode::kScalarTensorTensor: return scalar_tensor_tensor_cycles(i, s);
    case Opcode::kTensorTensorScan: return 2 * s.n;
    case Opcode::kSelect: return s.psum_sources == 1 ? s.n : 2 * s.n;
    case Opcode::kTensorScalar:
      return s.n / perf_mode(i, Engine::kVector, s) + sum_cycles(i, costs);
    case Opcode::kTensorCopy: return s.n / perf_mode(i, Engine::kVector, s);
    case Opcode::kTensorCopyDynamic: return std::max(costs.dynamic_address_cycles, s.n);
    case Opcode::kTensorReduce:
      return s.sixteen_bit && (i.alu == AluOp::kAdd || i.alu == AluOp::kMax) ? s.n / 2 : s.n;
    case Opcode::kMemset: return s.sixteen_bit && i.imm0 == 0 ? s.n / 2 : s.n;
    case Opcode::kActivation:
      return (i.activation == Activation::kReciprocal ? costs.vector_reciprocal_passes * s.n
                                                      : s.n) +
             sum_cycles(i, costs);
    case Opcode::kExponential: return s.n / costs.exponential_rate + sum_cycles(i, costs);
    case Opcode::kQuantizeMx: return s.n / costs.quantize_rate;
    case Opcode::kRandom: return s.n / costs.random_rate;
    case Opcode::kBatchAggregate: return costs.batch_aggregate_passes * s.n;
    case Opcode::kGeneric: return std::max(1.0, i.imm0) * s.n;
    default: return s.n;
  }
}

double scalar_cycles(const Instruction& i, const OperandStream& s, const InstructionCosts& costs) {
  switch (i.opcode) {
    case Opcode::kTensorScalar:
      return s.n / perf_mode(i, Engine::kScalar, s) + sum_cycles(i, costs);
    case Opcode::kTensorCopy: return s.n / perf_mode(i, Engine::kScalar, s);
    case Opcode::kTensorCopyDynamic: return std::max(costs.dynamic_address_cycles, s.n);
    case Opcode::kActivation: return s.n + sum_cycles(i, costs);
    case Opcode::kGeneric: return std::max(1.0, i.imm0) * s.n;
    default: return s.n;
  }
}

/// Each index costs its overhead, each element its width; up to four bytes of an index's elements
/// move together.
double gather_cycles(const Instruction& i, const InstructionCosts& costs) {
  const double e = std::max(1.0, i.imm0);
  const double data = costs.gather_width * e;
  const double together = std::min(4.0 / isa::size_bytes(i.dst.dtype), e);
  return static_cast<double>(i.dst.elements_per_partition()) * (costs.gather_overhead + data) /
         data / together;
}

double gpsimd_cycles(const Instruction& i, const OperandStream& s, const InstructionCosts& costs) {
  switch (i.opcode) {
    case Opcode::kTensorTensor: return 2 * s.n;
    case Opcode::kTensorCopyDynamic: return std::max(costs.dynamic_address_cycles, s.n);
    case Opcode::kActivation:
      return i.activation == Activation::kRsqrt ? costs.gpsimd_rsqrt_passes * s.n : s.n;
    case Opcode::kTopK:
      return costs.top_k_passes * kTopKPartitions *
                 static_cast<double>(i.src0.elements_per_partition()) +
             static_cast<double>(i.dst.elements_per_partition());
    case Opcode::kLocalGather: return gather_cycles(i, costs);
    case Opcode::kGeneric: return std::max(1.0, i.imm0) * s.n;
    default: return s.n;
  }
}

double data_cycles(double cycles, const EngineConfig& engine) {
  return cycles * 128.0 / engine.elements_per_cycle;
}

/// An independent instruction follows after the interval, the result after the data and the fixed
/// latency. Copies are cheaper than functions, and a column's address is looked up first.
EngineCost pipelined(const Instruction& i, double cycles, const OperandStream& stream,
                     const EngineConfig& c) {
  const bool copy = i.opcode == Opcode::kTensorCopy;
  const bool from_psum = stream.psum_sources > 0;
  const bool pointer = i.opcode == Opcode::kTensorScalar && i.src1.present();
  const double data = cycles + (pointer ? c.pointer_cycles : 0);
  const double gap =
      copy ? c.copy_interval_cycles : (from_psum ? c.psum_interval_cycles : c.interval_cycles);
  // The shortest instructions hide the gap.
  const double interval = std::max(c.min_cycles, data > c.min_cycles ? data + gap : data);
  const Picoseconds occupancy = cycles_time(interval, c.clock);
  const Picoseconds result =
      cycles_time(data + (copy ? c.copy_fixed_cycles : c.fixed_cycles), c.clock);
  return {occupancy, std::max(Picoseconds(0), result - occupancy),
          cycles_time(c.dependent_cycles, c.clock), Picoseconds(0)};
}

}  // namespace

EngineCost engine_cost(const Instruction& i, Engine engine, const isa::Program& program,
                       const CoreConfig& core) {
  if (engine == Engine::kTensor) return tensor_cost(i, core.tensor);
  if (i.opcode == Opcode::kLoadTable) return {};
  const OperandStream stream = operand_stream(i, engine, program, core);
  if (engine == Engine::kGpSimd) {
    // Its published formulas (150 + N) are issue costs: the processors do not overlap two
    // instructions.
    const EngineConfig& c = core.gpsimd;
    const double cycles = std::max(
        c.min_cycles, c.fixed_cycles + data_cycles(gpsimd_cycles(i, stream, core.costs), c));
    return {cycles_time(cycles, c.clock), Picoseconds(0), Picoseconds(0), Picoseconds(0)};
  }
  if (engine == Engine::kScalar) {
    const double cycles = data_cycles(scalar_cycles(i, stream, core.costs), core.scalar);
    return pipelined(i, cycles, stream, core.scalar);
  }
  const double cycles = data_cycles(vector_cycles(i, stream, core.costs), core.vector);
  return pipelined(i, stream.wide_stride ? 2 * cycles : cycles, stream, core.vector);
}

// Which functions share a table is not published: this grouping is estimated (README, "Timing rules
// of a core").
std::uint8_t activation_table(const Instruction& i, Engine engine) {
  const bool uses = i.opcode == Opcode::kActivation || i.opcode == Opcode::kLoadTable;
  if (!uses || engine != Engine::kScalar) return 0;
  switch (i.activation) {
    case Activation::kIdentity:
    case Activation::kRelu:
    case Activation::kSquare:
    case Activation::kAbs:
    case Activation::kSign:
    case Activation::kNeg: return 0;
    case Activation::kExp: return 1;
    case Activation::kLog: return 2;
    case Activation::kSqrt:
    case Activation::kRsqrt: return 3;
    case Activation::kReciprocal: return 4;
    case Activation::kSigmoid:
    case Activation::kSilu:
    case Activation::kSiluGrad: return 5;
    case Activation::kTanh: return 6;
    case Activation::kGelu:
    case Activation::kGeluGrad:
    case Activation::kErf: return 7;
    case Activation::kSin:
    case Activation::kCos: return 8;
  }
  return 0;
}

namespace {

bool overlap(const AccessPattern& x, const AccessPattern& y, const isa::Program& program) {
  if (!x.present() || x.buffer != y.buffer) return false;
  const auto space = program.buffers[x.buffer].space;
  const isa::Extent a = isa::tile_extent(x, space);
  const isa::Extent b = isa::tile_extent(y, space);
  const std::int64_t sa = isa::size_bytes(x.dtype);
  const std::int64_t sb = isa::size_bytes(y.dtype);
  const bool bytes = a.first * sa < (b.last + 1) * sb && b.first * sb < (a.last + 1) * sa;
  return bytes && x.start_partition < y.start_partition + y.num_partitions &&
         y.start_partition < x.start_partition + x.num_partitions;
}

}  // namespace

bool depends_on(const Instruction& later, const Instruction& earlier, const isa::Program& program) {
  const auto reads = [&](const AccessPattern& source) {
    return overlap(source, earlier.dst, program) || overlap(source, earlier.dst1, program);
  };
  return reads(later.src0) || reads(later.src1) ||
         (later.accumulate && reads(later.dst1.present() ? later.dst1 : later.dst));
}

}  // namespace trellis::sim
