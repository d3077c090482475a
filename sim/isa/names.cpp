#include <array>
#include <cstddef>

#include "sim/isa/types.h"

namespace trellis::sim::isa {
namespace {

using std::string_view;

/// The words of one enumeration, in the order of its enumerators.
template <typename E>
constexpr auto words();

template <>
constexpr auto words<Engine>() {
  return std::to_array<string_view>({"tensor", "vector", "scalar", "gpsimd", "sync"});
}
template <>
constexpr auto words<MemorySpace>() {
  return std::to_array<string_view>({"hbm", "sbuf", "psum"});
}
template <>
constexpr auto words<DType>() {
  return std::to_array<string_view>({"fp32", "tf32", "bf16", "fp16", "fp8e4m3", "fp8e5m2", "int32",
                                     "int16", "int8", "uint8", "bool", "fp8e4m3fn", "fp8e4m3fn_x4",
                                     "fp8e5m2_x4", "fp4e2m1_x4", "int64", "fp64"});
}
template <>
constexpr auto words<Opcode>() {
  return std::to_array<string_view>({"load_stationary",
                                     "matmul",
                                     "transpose",
                                     "tensor_tensor",
                                     "tensor_scalar",
                                     "scalar_tensor_tensor",
                                     "tensor_copy",
                                     "tensor_copy_dynamic",
                                     "tensor_reduce",
                                     "tensor_tensor_scan",
                                     "activation",
                                     "exponential",
                                     "select",
                                     "affine_select",
                                     "memset",
                                     "iota",
                                     "random",
                                     "batch_stats",
                                     "batch_aggregate",
                                     "max8",
                                     "find_index8",
                                     "match_replace8",
                                     "top_k",
                                     "local_gather",
                                     "quantize_mx",
                                     "generic",
                                     "dma",
                                     "dma_gather",
                                     "dma_scatter_add",
                                     "dma_transpose",
                                     "send_recv",
                                     "semaphore",
                                     "loop",
                                     "end_loop",
                                     "core_barrier",
                                     "load_table"});
}
template <>
constexpr auto words<AluOp>() {
  return std::to_array<string_view>({"none", "add", "subtract", "reverse_subtract", "multiply",
                                     "divide", "max", "min", "power", "equal", "not_equal",
                                     "greater", "greater_equal", "less", "less_equal", "and", "or",
                                     "xor", "bypass"});
}
template <>
constexpr auto words<Activation>() {
  return std::to_array<string_view>({"identity",   "exp",       "log",  "sqrt",      "rsqrt",
                                     "reciprocal", "sigmoid",   "silu", "silu_grad", "tanh",
                                     "gelu",       "gelu_grad", "relu", "sin",       "cos",
                                     "square",     "abs",       "sign", "erf",       "neg"});
}
template <>
constexpr auto words<DmaQueue>() {
  return std::to_array<string_view>({"load", "store", "spill", "collective"});
}
template <>
constexpr auto words<DmaDescriptors>() {
  return std::to_array<string_view>({"default", "static", "software", "hardware"});
}

template <>
constexpr auto words<MatmulMode>() {
  return std::to_array<string_view>(
      {"dense", "double_row", "sparse", "fp32_low", "fp32_high", "transpose"});
}

static_assert(words<Engine>().size() == kNumEngines);
static_assert(words<DmaQueue>().size() == kNumDmaQueues);
static_assert(words<Opcode>().size() == static_cast<std::size_t>(Opcode::kLoadTable) + 1);
static_assert(words<DType>().size() == static_cast<std::size_t>(DType::kFp64) + 1);
static_assert(words<AluOp>().size() == static_cast<std::size_t>(AluOp::kBypass) + 1);
static_assert(words<MatmulMode>().size() == static_cast<std::size_t>(MatmulMode::kTranspose) + 1);
static_assert(words<Activation>().size() == static_cast<std::size_t>(Activation::kNeg) + 1);

template <typename E>
string_view word(E value) {
  static constexpr auto kWords = words<E>();
  return kWords.at(static_cast<std::size_t>(value));
}

}  // namespace

string_view name(Engine value) { return word(value); }
string_view name(MemorySpace value) { return word(value); }
string_view name(DType value) { return word(value); }
string_view name(Opcode value) { return word(value); }
string_view name(AluOp value) { return word(value); }
string_view name(Activation value) { return word(value); }
string_view name(DmaQueue value) { return word(value); }
string_view name(MatmulMode value) { return word(value); }
string_view name(DmaDescriptors value) { return word(value); }

template <typename E>
std::optional<E> parse_name(string_view text) {
  static constexpr auto kWords = words<E>();
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (kWords[i] == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

template std::optional<Engine> parse_name<Engine>(string_view);
template std::optional<MemorySpace> parse_name<MemorySpace>(string_view);
template std::optional<DType> parse_name<DType>(string_view);
template std::optional<Opcode> parse_name<Opcode>(string_view);
template std::optional<AluOp> parse_name<AluOp>(string_view);
template std::optional<Activation> parse_name<Activation>(string_view);
template std::optional<DmaQueue> parse_name<DmaQueue>(string_view);
template std::optional<MatmulMode> parse_name<MatmulMode>(string_view);
template std::optional<DmaDescriptors> parse_name<DmaDescriptors>(string_view);

int size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
    case DType::kInt64: return 8;
    case DType::kFp32:
    case DType::kTf32:
    case DType::kInt32:
    case DType::kFp8E4M3FnX4:
    case DType::kFp8E5M2X4: return 4;
    case DType::kBf16:
    case DType::kFp16:
    case DType::kInt16:
    case DType::kFp4E2M1X4: return 2;
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
    case DType::kFp8E4M3Fn:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool: return 1;
  }
  return 1;
}

bool is_mx(DType dtype) {
  return dtype == DType::kFp8E4M3FnX4 || dtype == DType::kFp8E5M2X4 || dtype == DType::kFp4E2M1X4;
}

bool is_fp8(DType dtype) {
  return dtype == DType::kFp8E4M3 || dtype == DType::kFp8E5M2 || dtype == DType::kFp8E4M3Fn;
}

}  // namespace trellis::sim::isa
