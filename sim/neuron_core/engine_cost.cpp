#include "sim/neuron_core/engine_cost.h"

#include <algorithm>
#include <cmath>

#include "sim/isa/extent.h"

namespace trellis::sim {
namespace {

using isa::AccessPattern;
using isa::Activation;
using isa::AluOp;
using isa::DType;
using isa::Engine;
using isa::Instruction;
using isa::MemorySpace;
using isa::Opcode;

// NKI ISA (1db4d74e): reciprocal on VectorE max(64, 8N); activation_reduce reads the accumulator in 64 more cycles.
constexpr double kVectorReciprocal = 8;
constexpr double kReadAccumulatorCycles = 64;
// Architecture guides: an innermost stride beyond 16 bytes halves VectorE's bandwidth.
constexpr std::int64_t kFastStrideBytes = 16;

bool is_fp8(DType dtype) { return dtype == DType::kFp8E4M3 || dtype == DType::kFp8E5M2; }

/// Time factor of the array against bf16, whose moving columns take one cycle each.
double array_passes(DType dtype, const TensorEngineConfig& tensor, bool transpose) {
  if (dtype == DType::kFp32 || dtype == DType::kInt32) return transpose ? tensor.fp32_transpose_passes : tensor.fp32_passes;
  return is_fp8(dtype) ? tensor.fp8_factor : 1.0;
}

EngineCost tensor_cost(const Instruction& i, const TensorEngineConfig& tensor) {
  const DType dtype = i.src0.dtype;
  double cycles = 0;
  switch (i.opcode) {
    case Opcode::kLoadStationary:
      cycles = tensor.stationary_cycles * static_cast<double>(i.src0.elements_per_partition()) / 128.0 * array_passes(dtype, tensor, false);
      return {cycles_time(cycles, tensor.clock), Picoseconds(0)};
    case Opcode::kTranspose:
      cycles = std::max<double>(i.src0.num_partitions, std::min<double>(tensor.min_cycles, static_cast<double>(i.src0.elements_per_partition())));
      cycles *= array_passes(dtype, tensor, true);
      break;
    default:
      cycles = std::max<double>(static_cast<double>(i.src0.elements_per_partition()), tensor.min_cycles) * array_passes(dtype, tensor, false);
  }
  return {cycles_time(cycles, tensor.clock), cycles_time(tensor.fixed_cycles, tensor.clock)};
}

/// Where an instruction's data lie and how wide they are: what decides about VectorE's perf modes.
struct Shape {
  double n = 1;  ///< elements per partition
  bool two_bytes = true;
  bool all_sbuf = true;
  bool any_psum_source = false;
  bool contiguous = true;
  bool wide_stride = false;
};

void look_at(Shape& shape, const AccessPattern& a, bool source, const isa::Program& program) {
  if (!a.present()) return;
  shape.n = std::max(shape.n, static_cast<double>(a.elements_per_partition()));
  shape.two_bytes = shape.two_bytes && isa::size_bytes(a.dtype) <= 2;
  const bool psum = program.buffers[a.buffer].space == MemorySpace::kPsum;
  shape.all_sbuf = shape.all_sbuf && !psum;
  shape.any_psum_source = shape.any_psum_source || (source && psum);
  if (a.num_dims == 0) return;
  const auto& inner = a.dims[a.num_dims - 1];
  if (inner.count <= 1) return;
  shape.contiguous = shape.contiguous && inner.stride == 1;
  shape.wide_stride = shape.wide_stride || std::abs(inner.stride) * isa::size_bytes(a.dtype) > kFastStrideBytes;
}

Shape shape_of(const Instruction& i, const isa::Program& program) {
  Shape shape;
  const bool per_partition_src1 = i.opcode == Opcode::kTensorScalar || i.opcode == Opcode::kActivation;
  look_at(shape, i.dst, false, program);
  look_at(shape, i.src0, true, program);
  if (!per_partition_src1) look_at(shape, i.src1, true, program);
  return shape;
}

/// One streamed operand: the 4x mode for contiguous two-byte data in SBUF on both sides, half of it otherwise (README, "Engines").
double one_input_cycles(const Shape& s, const EngineConfig& engine) {
  if (!s.two_bytes || engine.bf16_speedup <= 1) return s.n;
  const bool widest = s.all_sbuf && s.contiguous;
  const bool half = s.all_sbuf != s.contiguous;
  if (widest) return s.n / engine.bf16_speedup;
  return half ? s.n / std::max(1.0, engine.bf16_speedup / 2) : s.n;
}

/// Two streamed operands share VectorE's SBUF port: two passes, unless one comes from PSUM or all are two bytes wide.
double two_input_cycles(const Shape& s, const EngineConfig& engine) {
  if (s.any_psum_source) return s.n;
  if (s.two_bytes) return s.n / std::max(1.0, engine.bf16_speedup / 2);
  return 2 * s.n;
}

double vector_cycles(const Instruction& i, const Shape& s, const EngineConfig& engine) {
  switch (i.opcode) {
    case Opcode::kTensorTensor: return two_input_cycles(s, engine);
    case Opcode::kSelect: return s.any_psum_source ? s.n : 2 * s.n;
    case Opcode::kTensorScalar:
    case Opcode::kTensorCopy: return one_input_cycles(s, engine);
    case Opcode::kTensorReduce: return s.two_bytes && (i.alu == AluOp::kAdd || i.alu == AluOp::kMax) ? s.n / 2 : s.n;
    case Opcode::kMemset: return s.two_bytes && i.imm0 == 0 ? s.n / 2 : s.n;
    case Opcode::kActivation: return i.activation == Activation::kReciprocal ? kVectorReciprocal * s.n : s.n;
    case Opcode::kGeneric: return std::max(1.0, i.imm0) * s.n;
    default: return s.n;
  }
}

double scalar_cycles(const Instruction& i, const Shape& s, const EngineConfig& engine) {
  switch (i.opcode) {
    case Opcode::kTensorScalar:
    case Opcode::kTensorCopy: return s.two_bytes ? s.n / engine.bf16_speedup : s.n;
    case Opcode::kGeneric: return std::max(1.0, i.imm0) * s.n;
    case Opcode::kActivation: return s.n + (i.accumulate ? kReadAccumulatorCycles : 0);
    default: return s.n;
  }
}

double gpsimd_cycles(const Instruction& i, const Shape& s) {
  if (i.opcode == Opcode::kGeneric) return std::max(1.0, i.imm0) * s.n;
  return i.opcode == Opcode::kTensorTensor ? 2 * s.n : s.n;
}

double data_cycles(double cycles, const EngineConfig& engine) { return cycles * 128.0 / engine.elements_per_cycle; }

}  // namespace

EngineCost engine_cost(const Instruction& i, Engine engine, const isa::Program& program, const CoreConfig& core) {
  if (engine == Engine::kTensor) return tensor_cost(i, core.tensor);
  const Shape shape = shape_of(i, program);
  if (engine == Engine::kGpSimd) {
    // Its published formulas (150 + N) are issue costs: the processors do not overlap two instructions.
    const EngineConfig& c = core.gpsimd;
    return {cycles_time(c.fixed_cycles + std::max(c.min_cycles, data_cycles(gpsimd_cycles(i, shape), c)), c.clock), Picoseconds(0)};
  }
  const bool vector = engine == Engine::kVector;
  const EngineConfig& c = vector ? core.vector : core.scalar;
  double cycles = data_cycles(vector ? vector_cycles(i, shape, c) : scalar_cycles(i, shape, c), c);
  if (vector && shape.wide_stride) cycles *= 2;
  return {cycles_time(std::max(c.min_cycles, cycles), c.clock), cycles_time(c.fixed_cycles, c.clock)};
}

std::uint8_t activation_table(const Instruction& i, Engine engine) {
  if (i.opcode != Opcode::kActivation || engine != Engine::kScalar) return 0;
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

bool depends_on(const Instruction& later, const Instruction& earlier, const isa::Program& program) {
  if (!earlier.dst.present()) return false;
  const auto reads = [&](const AccessPattern& source) {
    if (!source.present() || source.buffer != earlier.dst.buffer) return false;
    const auto space = program.buffers[source.buffer].space;
    const isa::Extent a = isa::tile_extent(source, space);
    const isa::Extent b = isa::tile_extent(earlier.dst, space);
    const std::int64_t sa = isa::size_bytes(source.dtype);
    const std::int64_t sb = isa::size_bytes(earlier.dst.dtype);
    const bool bytes = a.first * sa < (b.last + 1) * sb && b.first * sb < (a.last + 1) * sa;
    const bool rows = source.start_partition < earlier.dst.start_partition + earlier.dst.num_partitions &&
                      earlier.dst.start_partition < source.start_partition + source.num_partitions;
    return bytes && rows;
  };
  return reads(later.src0) || reads(later.src1) || (later.accumulate && reads(later.dst));
}

}  // namespace trellis::sim
