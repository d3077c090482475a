#include <fmt/format.h>

#include "sim/isa/features.h"
#include "sim/isa/rules.h"

namespace trellis::sim::isa {

bool is_dma(Opcode opcode) { return opcode >= Opcode::kDma && opcode <= Opcode::kSendRecv; }

bool is_control(Opcode opcode) {
  return opcode == Opcode::kSemaphore || opcode == Opcode::kLoop || opcode == Opcode::kEndLoop ||
         opcode == Opcode::kCoreBarrier;
}

namespace {

using Violations = std::vector<std::string>;

// NKI ISA pages (hardware.md §2.3, §2.8).
constexpr std::int64_t kVectorTransposeSide = 32;
constexpr std::int64_t kMaxBatchStats = 512;
constexpr std::int64_t kBatchStats = 6, kBatchTriple = 3, kMoments = 2;
constexpr std::int64_t kScalars = 2;  // imm0 and imm1
constexpr std::int64_t kEight = 8, kMaxEightSearch = 16384;
constexpr std::int64_t kGroupPartitions = 16, kMaxTopKElements = 65535, kMaxTopK = 32767;
constexpr std::int64_t kMxPacked = 4;

std::int64_t groups_of(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

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
    case Opcode::kMatmul: return engine == Engine::kTensor;
    case Opcode::kTranspose: return engine == Engine::kTensor || vector;
    case Opcode::kScalarTensorTensor:
    case Opcode::kTensorTensorScan:
    case Opcode::kExponential:
    case Opcode::kBatchStats:
    case Opcode::kBatchAggregate:
    case Opcode::kMax8:
    case Opcode::kFindIndex8:
    case Opcode::kMatchReplace8:
    case Opcode::kQuantizeMx: return vector;
    case Opcode::kTensorCopyDynamic: return vector || scalar;
    case Opcode::kRandom:
    case Opcode::kTensorTensor:
    case Opcode::kTensorReduce:
    case Opcode::kSelect:
    case Opcode::kMemset: return vector || gpsimd;
    case Opcode::kTensorScalar:
    case Opcode::kTensorCopy:
    case Opcode::kGeneric: return vector || scalar || gpsimd;
    case Opcode::kActivation:
      return scalar || gpsimd || (vector && activation_on_vector(i.activation));
    case Opcode::kIota:
    case Opcode::kAffineSelect:
    case Opcode::kTopK:
    case Opcode::kLocalGather: return gpsimd;
    case Opcode::kLoadTable: return scalar;
    case Opcode::kDma:
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd:
    case Opcode::kDmaTranspose:
    case Opcode::kSendRecv:
    case Opcode::kSemaphore:
    case Opcode::kLoop:
    case Opcode::kEndLoop:
    case Opcode::kCoreBarrier: return true;
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
    case Opcode::kScalarTensorTensor:
    case Opcode::kTensorCopyDynamic:
    case Opcode::kTensorTensorScan:
    case Opcode::kExponential:
    case Opcode::kSelect:
    case Opcode::kFindIndex8:
    case Opcode::kMatchReplace8:
    case Opcode::kLocalGather:
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd: return {true, true, true};
    case Opcode::kMemset:
    case Opcode::kIota:
    case Opcode::kRandom: return {true, false, false};
    case Opcode::kGeneric:
    case Opcode::kLoadTable:
    case Opcode::kSemaphore:
    case Opcode::kLoop:
    case Opcode::kEndLoop:
    case Opcode::kCoreBarrier: return {false, false, false};
    default: return {true, true, false};
  }
}

/// A sum next to the data is optional, scales next to MX data are not.
bool may_have_second_result(Opcode opcode) {
  return opcode == Opcode::kActivation || opcode == Opcode::kTensorScalar ||
         opcode == Opcode::kExponential || opcode == Opcode::kQuantizeMx;
}

bool check_presence(const Instruction& i, Violations& out) {
  const OperandNeeds need = needs(i.opcode);
  const std::size_t before = out.size();
  if (need.dst && !i.dst.present()) out.push_back("has no dst");
  if (need.src0 && !i.src0.present()) out.push_back("has no src0");
  if (need.src1 && !i.src1.present()) out.push_back("has no src1");
  if (i.opcode == Opcode::kQuantizeMx && !i.dst1.present())
    out.push_back("has no dst1 for its scales");
  if (i.dst1.present() && !may_have_second_result(i.opcode))
    out.push_back("has a dst1: it gives no second result");
  if (i.opcode == Opcode::kGeneric && !i.dst.present() && !i.src0.present())
    out.push_back("has no operand to be costed by");
  return out.size() == before;
}

void check_version(const Instruction& i, const Limits& limits, Violations& out) {
  const auto require = [&](int version, std::string_view what) {
    if (version > limits.core_version)
      out.push_back(fmt::format("{} needs NeuronCore-v{}, the core is v{}", what, version,
                                limits.core_version));
  };
  require(first_core_version(i.opcode), "it");
  require(first_core_version(i.mode), name(i.mode));
  for (const AccessPattern* a : {&i.dst, &i.src0, &i.src1, &i.dst1}) {
    if (a->present()) require(first_core_version(a->dtype), name(a->dtype));
  }
}

void check_shape(const AccessPattern& a, const char* role, std::int64_t partitions,
                 std::int64_t elements, Violations& out) {
  if (a.num_partitions == partitions && a.elements_per_partition() == elements) return;
  out.push_back(fmt::format("{} is {} × {}, expected {} × {}", role, a.num_partitions,
                            a.elements_per_partition(), partitions, elements));
}

void check_dtype(const AccessPattern& a, const char* role, DType expected, Violations& out) {
  if (a.dtype != expected)
    out.push_back(fmt::format("{} must be {}, is {}", role, name(expected), name(a.dtype)));
}

void check_transpose(const Instruction& i, const RuleContext& context, Violations& out) {
  const bool array = context.engine == Engine::kTensor;
  if (array) check_tensor_places(i, context, out);
  const std::int64_t side = array ? context.limits.max_stationary : kVectorTransposeSide;
  const std::int64_t columns = i.src0.elements_per_partition();
  if (i.src0.num_partitions > side || columns > side) {
    out.push_back(fmt::format("src0 is {} × {}, the {} engine transposes at most {} × {}",
                              i.src0.num_partitions, columns, name(context.engine), side, side));
  }
  if (i.dst.num_partitions != columns || i.dst.elements_per_partition() != i.src0.num_partitions) {
    out.push_back(fmt::format("dst is {} × {}, the transpose of src0 is {} × {}",
                              i.dst.num_partitions, i.dst.elements_per_partition(), columns,
                              i.src0.num_partitions));
  }
}

void check_same_shape(const AccessPattern& a, const AccessPattern& b, const char* a_role,
                      const char* b_role, Violations& out) {
  if (a.num_partitions == b.num_partitions &&
      a.elements_per_partition() == b.elements_per_partition())
    return;
  out.push_back(fmt::format("{} is {} × {}, {} is {} × {}", a_role, a.num_partitions,
                            a.elements_per_partition(), b_role, b.num_partitions,
                            b.elements_per_partition()));
}

/// [P, 1] next to data of P partitions.
void check_column(const AccessPattern& column, const AccessPattern& data, const char* role,
                  Violations& out) {
  check_shape(column, role, data.num_partitions, 1, out);
}

/// dst [P, G] next to src0 [P, G, N].
void check_reduced(const Instruction& i, Violations& out) {
  const std::int64_t n = i.src0.elements_per_partition(), results = i.dst.elements_per_partition();
  if (results == 0 || n % results != 0) return check_column(i.dst, i.src0, "dst", out);
  check_shape(i.dst, "dst", i.src0.num_partitions, results, out);
}

void check_elementwise(const Instruction& i, Violations& out) {
  if (i.opcode != Opcode::kTensorReduce && i.src0.present() && i.dst.present())
    check_same_shape(i.dst, i.src0, "dst", "src0", out);
  switch (i.opcode) {
    case Opcode::kTensorTensor:
    case Opcode::kScalarTensorTensor:
    case Opcode::kTensorTensorScan:
    case Opcode::kSelect: check_same_shape(i.src1, i.src0, "src1", "src0", out); break;
    case Opcode::kTensorScalar:
      if (i.src1.present())
        check_shape(i.src1, "src1", i.src0.num_partitions,
                    i.src1.elements_per_partition() == kScalars ? kScalars : 1, out);
      if (i.dst1.present()) check_column(i.dst1, i.src0, "dst1", out);
      break;
    case Opcode::kActivation:
    case Opcode::kExponential:
      if (i.src1.present()) check_column(i.src1, i.src0, "src1", out);
      if (i.dst1.present()) check_column(i.dst1, i.src0, "dst1", out);
      break;
    case Opcode::kTensorCopyDynamic:
      check_shape(i.src1, "src1", 1, 1, out);
      check_dtype(i.src1, "src1", DType::kInt32, out);
      break;
    case Opcode::kTensorReduce: check_reduced(i, out); break;
    default: break;
  }
}

void check_send_recv(const Instruction& i, const RuleContext& context, Violations& out) {
  check_same_shape(i.dst, i.src0, "dst", "src0", out);
  for (const auto& [role, operand] : {std::pair{"dst", &i.dst}, std::pair{"src0", &i.src0}}) {
    const auto space = context.program.buffers[operand->buffer].space;
    if (space != MemorySpace::kSbuf)
      out.push_back(fmt::format("{} must lie in SBUF, lies in {}", role, name(space)));
  }
}

void check_batch(const Instruction& i, Violations& out) {
  const std::int64_t n = i.src0.elements_per_partition();
  if (i.opcode == Opcode::kBatchAggregate) {
    if (n % kBatchTriple != 0)
      out.push_back(fmt::format("src0 has {} elements per partition, expected triples", n));
    check_shape(i.dst, "dst", i.src0.num_partitions, kMoments, out);
    return;
  }
  if (n > kMaxBatchStats)
    out.push_back(fmt::format("src0 has {} elements per partition, at most {} are allowed", n,
                              kMaxBatchStats));
  check_shape(i.dst, "dst", i.src0.num_partitions, kBatchStats, out);
}

void check_eight(const Instruction& i, Violations& out) {
  const std::int64_t n = i.src0.elements_per_partition();
  if (n < kEight || n > kMaxEightSearch)
    out.push_back(fmt::format("src0 has {} elements per partition, legal are {} to {}", n, kEight,
                              kMaxEightSearch));
  if (i.opcode != Opcode::kMax8) check_shape(i.src1, "src1", i.src0.num_partitions, kEight, out);
  if (i.opcode == Opcode::kMatchReplace8) {
    check_same_shape(i.dst, i.src0, "dst", "src0", out);
  } else {
    check_shape(i.dst, "dst", i.src0.num_partitions, kEight, out);
  }
  if (i.opcode == Opcode::kFindIndex8) check_dtype(i.dst, "dst", DType::kInt32, out);
}

void check_top_k(const Instruction& i, Violations& out) {
  const std::int64_t n = kGroupPartitions * i.src0.elements_per_partition();
  const std::int64_t k = i.dst.elements_per_partition();
  check_dtype(i.src0, "src0", DType::kBf16, out);
  if (n > kMaxTopKElements)
    out.push_back(fmt::format("16 partitions of src0 have {} elements, at most {} are allowed", n,
                              kMaxTopKElements));
  if (k > kMaxTopK || k > n)
    out.push_back(fmt::format("K is {}, at most {} is allowed", k, std::min(n, kMaxTopK)));
  check_shape(i.dst, "dst", groups_of(i.src0.num_partitions, kGroupPartitions), k, out);
}

void check_local_gather(const Instruction& i, Violations& out) {
  const auto e = static_cast<std::int64_t>(i.imm0);
  if (e < 1 || i.dst.elements_per_partition() % e != 0) {
    out.push_back(
        fmt::format("dst has {} elements per partition, they do not divide into runs of imm0 = {}",
                    i.dst.elements_per_partition(), i.imm0));
    return;
  }
  check_dtype(i.src1, "src1", DType::kInt16, out);
  check_shape(i.src1, "src1", i.src0.num_partitions,
              groups_of(i.dst.elements_per_partition() / e, kGroupPartitions), out);
  if (i.dst.num_partitions != i.src0.num_partitions)
    out.push_back(
        fmt::format("dst has {} partitions, src0 {}", i.dst.num_partitions, i.src0.num_partitions));
}

void check_quantize(const Instruction& i, Violations& out) {
  if (!is_mx(i.dst.dtype))
    out.push_back(fmt::format("dst must be a packed MX type, is {}", name(i.dst.dtype)));
  check_dtype(i.dst1, "dst1", DType::kUInt8, out);
  check_shape(i.src0, "src0", i.dst.num_partitions, kMxPacked * i.dst.elements_per_partition(),
              out);
  check_shape(i.dst1, "dst1", groups_of(i.dst.num_partitions, kMxScaleRows),
              i.dst.elements_per_partition(), out);
}

void check_descriptors(const Instruction& i, const RuleContext& context, Violations& out) {
  if (i.dma_descriptors == DmaDescriptors::kSoftware && context.engine != Engine::kGpSimd) {
    out.push_back(fmt::format("software makes descriptors on gpsimd only, the instruction is on {}",
                              name(context.engine)));
  }
  if (i.dma_descriptors != DmaDescriptors::kHardware) return;
  if (context.limits.hardware_dma_generators == 0)
    out.push_back("the core has no hardware descriptor generators");
  if (context.engine != Engine::kSync && context.engine != Engine::kScalar) {
    out.push_back(
        fmt::format("hardware descriptor generators obey sync and scalar, the instruction is on {}",
                    name(context.engine)));
  }
  if (i.opcode != Opcode::kDma && i.opcode != Opcode::kDmaTranspose)
    out.push_back("hardware descriptor generators neither gather nor scatter");
  if (i.opcode == Opcode::kDmaTranspose && size_bytes(i.src0.dtype) != 2)
    out.push_back("hardware descriptor generators transpose elements of 2 bytes only");
}

void check_dma_transpose(const Instruction& i, const RuleContext& context, Violations& out) {
  check_descriptors(i, context, out);
  const int size = size_bytes(i.src0.dtype);
  if (size != 2 && size != 4)
    out.push_back(
        fmt::format("src0 is {}, DMA transposes elements of 2 or 4 bytes", name(i.src0.dtype)));
  if (size_bytes(i.dst.dtype) != size)
    out.push_back(fmt::format("dst is {}, src0 is {}: a transpose does not cast", name(i.dst.dtype),
                              name(i.src0.dtype)));
  check_shape(i.dst, "dst", i.src0.elements_per_partition(), i.src0.num_partitions, out);
}

void check_dma(const Instruction& i, const RuleContext& context, Violations& out) {
  check_descriptors(i, context, out);
  if (i.opcode == Opcode::kDma) {
    if (i.dst.elements() != i.src0.elements())
      out.push_back(
          fmt::format("dst has {} elements, src0 {}", i.dst.elements(), i.src0.elements()));
    return;
  }
  const AccessPattern& rows = i.opcode == Opcode::kDmaGather ? i.dst : i.src0;
  if (i.src1.dtype != DType::kInt32)
    out.push_back(
        fmt::format("src1 holds row indices and must be int32, is {}", name(i.src1.dtype)));
  if (rows.elements() % i.src1.elements() != 0) {
    out.push_back(fmt::format("{} elements do not divide into {} indexed rows", rows.elements(),
                              i.src1.elements()));
  }
}

}  // namespace

void check_operation(const Instruction& i, const RuleContext& context, Violations& out) {
  if (!runs_on(i, context.engine)) {
    out.push_back(fmt::format("the {} engine does not execute it", name(context.engine)));
    return;
  }
  if (!check_presence(i, out)) return;
  check_version(i, context.limits, out);
  if (i.dst1.present() && context.engine == Engine::kGpSimd)
    out.push_back("has a dst1: GpSimd has no accumulators");
  switch (i.opcode) {
    case Opcode::kLoadStationary: check_load_stationary(i, context, out); break;
    case Opcode::kMatmul: check_matmul(i, context, out); break;
    case Opcode::kTranspose: check_transpose(i, context, out); break;
    case Opcode::kBatchStats:
    case Opcode::kBatchAggregate: check_batch(i, out); break;
    case Opcode::kMax8:
    case Opcode::kFindIndex8:
    case Opcode::kMatchReplace8: check_eight(i, out); break;
    case Opcode::kTopK: check_top_k(i, out); break;
    case Opcode::kLocalGather: check_local_gather(i, out); break;
    case Opcode::kQuantizeMx: check_quantize(i, out); break;
    case Opcode::kDma:
    case Opcode::kDmaGather:
    case Opcode::kDmaScatterAdd: check_dma(i, context, out); break;
    case Opcode::kDmaTranspose: check_dma_transpose(i, context, out); break;
    case Opcode::kSendRecv: check_send_recv(i, context, out); break;
    case Opcode::kGeneric:
    case Opcode::kLoadTable: break;
    default: check_elementwise(i, out); break;
  }
}

}  // namespace trellis::sim::isa
