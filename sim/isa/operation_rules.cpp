#include <fmt/format.h>

#include "sim/isa/rules.h"

namespace trellis::sim::isa {

bool is_dma(Opcode opcode) { return opcode == Opcode::kDma || opcode == Opcode::kDmaGather || opcode == Opcode::kDmaScatterAdd; }

bool is_control(Opcode opcode) { return opcode == Opcode::kSemaphore || opcode == Opcode::kLoop || opcode == Opcode::kEndLoop; }

namespace {

using Violations = std::vector<std::string>;

bool activation_on_vector(Activation fn) {
  switch (fn) {
    case Activation::kIdentity:
    case Activation::kReciprocal:
    case Activation::kSquare:
    case Activation::kAbs:
    case Activation::kSign:
    case Activation::kRelu:
    case Activation::kNeg: return true;
    default: return false;
  }
}

/// Which engine executes which opcode (NKI ISA pages, hardware.md §2.8).
bool runs_on(const Instruction& i, Engine engine) {
  const bool vector = engine == Engine::kVector;
  const bool scalar = engine == Engine::kScalar;
  const bool gpsimd = engine == Engine::kGpSimd;
  switch (i.opcode) {
    case Opcode::kLoadStationary:
    case Opcode::kMatmul:
    case Opcode::kTranspose: return engine == Engine::kTensor;
    case Opcode::kTensorTensor:
    case Opcode::kTensorReduce:
    case Opcode::kSelect:
    case Opcode::kMemset: return vector || gpsimd;
    case Opcode::kTensorScalar:
    case Opcode::kTensorCopy:
    case Opcode::kGeneric: return vector || scalar || gpsimd;
    case Opcode::kActivation: return scalar || gpsimd || (vector && activation_on_vector(i.activation));
    case Opcode::kIota: return gpsimd;
    case Opcode::kDma:
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd:
    case Opcode::kSemaphore:
    case Opcode::kLoop:
    case Opcode::kEndLoop: return true;
  }
  return false;
}

struct OperandNeeds {
  bool dst, src0, src1;
};

OperandNeeds needs(Opcode opcode) {
  switch (opcode) {
    case Opcode::kLoadStationary: return {false, true, false};
    case Opcode::kTensorTensor:
    case Opcode::kSelect:
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd: return {true, true, true};
    case Opcode::kMemset:
    case Opcode::kIota: return {true, false, false};
    case Opcode::kGeneric:
    case Opcode::kSemaphore:
    case Opcode::kLoop:
    case Opcode::kEndLoop: return {false, false, false};
    default: return {true, true, false};
  }
}

bool check_presence(const Instruction& i, Violations& out) {
  const OperandNeeds need = needs(i.opcode);
  const std::size_t before = out.size();
  if (need.dst && !i.dst.present()) out.push_back("lacks dst");
  if (need.src0 && !i.src0.present()) out.push_back("lacks src0");
  if (need.src1 && !i.src1.present()) out.push_back("lacks src1");
  if (i.opcode == Opcode::kGeneric && !i.dst.present() && !i.src0.present()) out.push_back("lacks an operand to be costed by");
  return out.size() == before;
}

void check_load_stationary(const Instruction& i, const RuleContext& context, Violations& out) {
  const auto& buffer = context.program.buffers[i.src0.buffer];
  if (buffer.space != MemorySpace::kSbuf) out.push_back(fmt::format("src0 must lie in SBUF, lies in {}", name(buffer.space)));
  if (i.src0.elements_per_partition() > context.limits.max_stationary || i.src0.num_partitions > context.limits.max_stationary) {
    out.push_back(fmt::format("stationary operand is {} × {}, at most {} × {} fit", i.src0.num_partitions, i.src0.elements_per_partition(),
        context.limits.max_stationary, context.limits.max_stationary));
  }
}

void check_tensor_places(const Instruction& i, const RuleContext& context, Violations& out) {
  const auto& target = context.program.buffers[i.dst.buffer];
  const auto& source = context.program.buffers[i.src0.buffer];
  if (target.space != MemorySpace::kPsum) out.push_back(fmt::format("dst must lie in PSUM, lies in {}", name(target.space)));
  if (source.space != MemorySpace::kSbuf) out.push_back(fmt::format("src0 must lie in SBUF, lies in {}", name(source.space)));
}

void check_matmul(const Instruction& i, const RuleContext& context, Violations& out) {
  check_tensor_places(i, context, out);
  const std::int64_t columns = i.src0.elements_per_partition();
  if (columns > context.limits.max_moving) out.push_back(fmt::format("moving operand has {} columns, at most {} fit", columns, context.limits.max_moving));
  if (i.dst.elements_per_partition() != columns) out.push_back(fmt::format("dst has {} columns, src0 {}", i.dst.elements_per_partition(), columns));
  if (context.stationary == nullptr) {
    out.push_back("no load_stationary stands before it in its queue");
    return;
  }
  const AccessPattern& weights = context.stationary->src0;
  if (weights.num_partitions != i.src0.num_partitions) {
    out.push_back(fmt::format("src0 has {} partitions, the stationary operand {}", i.src0.num_partitions, weights.num_partitions));
  }
  if (weights.elements_per_partition() != i.dst.num_partitions) {
    out.push_back(fmt::format("dst has {} partitions, the stationary operand {} columns", i.dst.num_partitions, weights.elements_per_partition()));
  }
}

void check_transpose(const Instruction& i, const RuleContext& context, Violations& out) {
  check_tensor_places(i, context, out);
  if (i.dst.num_partitions != i.src0.elements_per_partition() || i.dst.elements_per_partition() != i.src0.num_partitions) {
    out.push_back(fmt::format("dst is {} × {}, the transpose of src0 is {} × {}", i.dst.num_partitions, i.dst.elements_per_partition(),
        i.src0.elements_per_partition(), i.src0.num_partitions));
  }
}

void check_same_shape(const AccessPattern& a, const AccessPattern& b, const char* a_role, const char* b_role, Violations& out) {
  if (a.num_partitions == b.num_partitions && a.elements_per_partition() == b.elements_per_partition()) return;
  out.push_back(fmt::format("{} is {} × {}, {} is {} × {}", a_role, a.num_partitions, a.elements_per_partition(), b_role, b.num_partitions,
      b.elements_per_partition()));
}

void check_column(const AccessPattern& column, const AccessPattern& data, const char* role, Violations& out) {
  if (column.elements_per_partition() == 1 && column.num_partitions == data.num_partitions) return;
  out.push_back(fmt::format("{} is {} × {}, expected {} × 1", role, column.num_partitions, column.elements_per_partition(), data.num_partitions));
}

void check_elementwise(const Instruction& i, Violations& out) {
  switch (i.opcode) {
    case Opcode::kTensorTensor:
    case Opcode::kSelect:
      check_same_shape(i.dst, i.src0, "dst", "src0", out);
      check_same_shape(i.src1, i.src0, "src1", "src0", out);
      break;
    case Opcode::kTensorScalar:
    case Opcode::kActivation:
      check_same_shape(i.dst, i.src0, "dst", "src0", out);
      if (i.src1.present()) check_column(i.src1, i.src0, "src1", out);
      break;
    case Opcode::kTensorCopy: check_same_shape(i.dst, i.src0, "dst", "src0", out); break;
    case Opcode::kTensorReduce: check_column(i.dst, i.src0, "dst", out); break;
    default: break;
  }
}

void check_dma(const Instruction& i, Violations& out) {
  if (i.opcode == Opcode::kDma) {
    if (i.dst.elements() != i.src0.elements()) out.push_back(fmt::format("dst has {} elements, src0 {}", i.dst.elements(), i.src0.elements()));
    return;
  }
  const AccessPattern& rows = i.opcode == Opcode::kDmaGather ? i.dst : i.src0;
  if (i.src1.dtype != DType::kInt32) out.push_back(fmt::format("src1 holds row indices and must be int32, is {}", name(i.src1.dtype)));
  if (rows.elements() % i.src1.elements() != 0) {
    out.push_back(fmt::format("{} elements do not divide into {} indexed rows", rows.elements(), i.src1.elements()));
  }
}

}  // namespace

void check_operation(const Instruction& i, const RuleContext& context, Violations& out) {
  if (!runs_on(i, context.engine)) {
    out.push_back(fmt::format("the {} engine does not execute it", name(context.engine)));
    return;
  }
  if (!check_presence(i, out)) return;
  switch (i.opcode) {
    case Opcode::kLoadStationary: check_load_stationary(i, context, out); break;
    case Opcode::kMatmul: check_matmul(i, context, out); break;
    case Opcode::kTranspose: check_transpose(i, context, out); break;
    case Opcode::kDma:
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd: check_dma(i, out); break;
    default: check_elementwise(i, out); break;
  }
}

}  // namespace trellis::sim::isa
