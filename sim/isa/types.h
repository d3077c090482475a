#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trellis::sim::isa {

/// The five sequencers of a NeuronCore; each runs its own queue in order.
enum class Engine : std::uint8_t { kTensor, kVector, kScalar, kGpSimd, kSync };
inline constexpr int kNumEngines = 5;

enum class MemorySpace : std::uint8_t { kHbm, kSbuf, kPsum };

/// Hardware types first; kFp64 and kInt64 exist in host programs only: the compiler maps them to kFp32 and kInt32 on the way in.
enum class DType : std::uint8_t { kFp32, kTf32, kBf16, kFp16, kFp8E4M3, kFp8E5M2, kInt32, kInt16, kInt8, kUInt8, kBool, kInt64, kFp64 };

enum class Opcode : std::uint8_t {
  // Tensor engine
  kLoadStationary,  ///< src0: [K partitions, M columns] → the array's weights
  kMatmul,          ///< dst (PSUM) [M partitions, N] (+)= stationaryᵀ · src0 [K partitions, N]; accumulate: keep dst's value
  kTranspose,       ///< Tensor: dst (PSUM) [F, P] = src0 [P, F]ᵀ
  // Vector, Scalar, GpSimd
  kTensorTensor,    ///< dst = src0 alu src1
  kTensorScalar,    ///< dst = (src0 alu imm0) alu2 imm1; src1, when present, is a per-partition scalar [P, 1] in place of imm0
  kTensorCopy,      ///< dst = cast(src0)
  kTensorReduce,    ///< dst [P, 1] = alu-reduce of src0 along the free dimensions; accumulate: combine with dst
  kActivation,      ///< dst = fn(imm0 * src0 + imm1); src1, when present, is a per-partition bias [P, 1] in place of imm1
  kSelect,          ///< dst = src1 ? src0 : imm0 (src1: predicate)
  kMemset,          ///< dst = imm0
  kIota,            ///< dst = imm0 + imm1 * linear index
  kGeneric,         ///< an operation that is costed per element (imm0 passes) but has no executable semantics: evidence `estimated`
  // any engine's queue may start one
  kDma,             ///< dst = cast(src0), by the DMA engines of queue group `dma_queue`; completion posts the updates
  kDmaGather,       ///< dst row i = src0 row src1[i] (src1: indices, int32)
  kDmaScatterAdd,   ///< dst row src1[i] += src0 row i
  // control
  kSemaphore,       ///< only waits and updates
  kLoop,            ///< repeats up to the matching kEndLoop `count` times
  kEndLoop,
};

enum class AluOp : std::uint8_t { kNone, kAdd, kSubtract, kReverseSubtract, kMultiply, kDivide, kMax, kMin, kPower, kEqual, kNotEqual,
  kGreater, kGreaterEqual, kLess, kLessEqual, kAnd, kOr, kXor, kBypass };

enum class Activation : std::uint8_t { kIdentity, kExp, kLog, kSqrt, kRsqrt, kReciprocal, kSigmoid, kSilu, kSiluGrad, kTanh, kGelu, kGeluGrad, kRelu,
  kSin, kCos, kSquare, kAbs, kSign, kErf, kNeg };

/// Logical groups of DMA rings; one transfer uses one group on all 16 engines.
enum class DmaQueue : std::uint8_t { kLoad, kStore, kSpill, kCollective };
inline constexpr int kNumDmaQueues = 4;

[[nodiscard]] std::string_view name(Engine);
[[nodiscard]] std::string_view name(MemorySpace);
[[nodiscard]] std::string_view name(DType);
[[nodiscard]] std::string_view name(Opcode);
[[nodiscard]] std::string_view name(AluOp);
[[nodiscard]] std::string_view name(Activation);
[[nodiscard]] std::string_view name(DmaQueue);
/// Inverse of `name`; nullopt for an unknown word.
template <typename E>
[[nodiscard]] std::optional<E> parse_name(std::string_view word);

[[nodiscard]] int size_bytes(DType);

}  // namespace trellis::sim::isa
