#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trellis::sim::isa {

/// The five sequencers of a NeuronCore; each runs its own queue in order.
enum class Engine : std::uint8_t { kTensor, kVector, kScalar, kGpSimd, kSync };
inline constexpr int kNumEngines = 5;

enum class MemorySpace : std::uint8_t { kHbm, kSbuf, kPsum };

/// Hardware types first; kFp64 and kInt64 exist in host programs only: the compiler maps them to
/// kFp32 and kInt32 on the way in. kFp8E4M3 and kFp8E5M2 are the cores' own fp8 formats, kFp8E4M3Fn
/// is OCP's. A type ending in X4 packs four neighbours of the contraction dimension into one
/// element (MX data, whose scales lie in a separate tensor): counts and strides are in packed
/// elements.
enum class DType : std::uint8_t {
  kFp32,
  kTf32,
  kBf16,
  kFp16,
  kFp8E4M3,
  kFp8E5M2,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
  kFp8E4M3Fn,
  kFp8E4M3FnX4,
  kFp8E5M2X4,
  kFp4E2M1X4,
  kInt64,
  kFp64
};

/// How the array reads a matmul's operands; the load of its weights has the same mode. P:
/// partitions, M: weights' columns, N: dst's columns.
enum class MatmulMode : std::uint8_t {
  kDense,      ///< weights [P, M], moving [P, N]: contraction over P (packed MX types: 4·P)
  kDoubleRow,  ///< fp8: weights [P, 2, M], moving [P, 2, N]: contraction over 2·P in the time of P
  kSparse,     ///< weights [P, M] keep 4 of 4·r; moving [P, r, N], r = 2, 3, 4. The load's src1 [P,
            ///< ⌈M/4⌉] int16 holds a tag of 4 bits a weight (column m: bits 4·(m mod 4)…): tag t of
            ///< partition p multiplies moving[4·⌊p/4⌋ + ⌊t/r⌋, t mod r, n]. The tags' code is ours.
  kFp32Low,   ///< fp32 in two instructions, as profiles show it: the weights' low halves, …
  kFp32High,  ///< … then the high ones; the two products add up to the dense one. What a half holds
              ///< is not published: ours keeps 12 bits of the mantissa in the high one
  kTranspose,  ///< moving is the identity: the weights pass through, and dst has their dtype
};

enum class Opcode : std::uint8_t {
  // Tensor engine
  kLoadStationary,  ///< src0: [K partitions, M columns] → the array's weights; MX: src1 [⌈K/8⌉, M]
                    ///< uint8, powers of two biased by 127
  kMatmul,  ///< dst (PSUM) [M partitions, N] (+)= stationaryᵀ · src0 [K partitions, N]; accumulate:
            ///< keep dst's value; MX: src1 as above
  kTranspose,  ///< dst [F, P] = src0 [P, F]ᵀ; Tensor: SBUF → PSUM, up to 128 × 128; Vector: SBUF or
               ///< PSUM, up to 32 × 32
  // Vector, Scalar, GpSimd
  kTensorTensor,  ///< dst = src0 alu src1
  kTensorScalar,  ///< dst = (src0 alu imm0) alu2 imm1; src1, when present, is a per-partition
                  ///< scalar [P, 1] in place of imm0, or
                  ///< [P, 2] in place of imm0 and imm1;
                  ///< dst1, when present, [P, 1] = sum of dst's row (accumulate: added to dst1)
  kScalarTensorTensor,  ///< dst = (src0 alu imm0) alu2 src1
  kTensorCopy,          ///< dst = cast(src0)
  kTensorCopyDynamic,   ///< dst = cast(src0 displaced by src1[0, 0] elements): an address from a
                        ///< register, src1 [1, 1] int32
  kTensorReduce,        ///< dst [P, G] = alu-reduce of src0 [P, G, N] along N, G = 1: all free
                        ///< dimensions; accumulate: combine with dst
  kTensorTensorScan,  ///< dst[p, i] = (src0[p, i] alu dst[p, i - 1]) alu2 src1[p, i], with imm0 for
                      ///< dst[p, -1]
  kActivation,    ///< dst = fn(imm0 * src0 + imm1); src1, when present, is a per-partition bias [P,
                  ///< 1] in place of imm1;
                  ///< dst1 as kTensorScalar's
  kExponential,   ///< dst = exp(src0 - src1); src1 [P, 1]; dst1 as kTensorScalar's
  kSelect,        ///< dst = src1 ? src0 : imm0 (src1: predicate)
  kAffineSelect,  ///< dst[p, i] = (imm0 + p - i) alu 0 ? src0[p, i] : imm1
  kMemset,        ///< dst = imm0
  kIota,          ///< dst = imm0 + imm1 * linear index
  kRandom,        ///< dst = the engine's next random integers of dst's width
  kBatchStats,    ///< dst [P, 6] = count, mean, count · variance of the elements at even places of
                  ///< src0's row, then at odd ones
  kBatchAggregate,  ///< dst [P, 2] = mean, variance of the triples (count, mean, count · variance)
                    ///< in src0 [P, 3·k]
  kMax8,            ///< dst [P, 8] = the largest eight of src0's row, descending
  kFindIndex8,      ///< dst [P, 8] int32 = where src0's row first holds each of src1 [P, 8]; equal
                    ///< values: one place each
  kMatchReplace8,   ///< dst = src0, the places that kFindIndex8 finds for src1 [P, 8] replaced by
                    ///< imm0
  kTopK,            ///< dst [⌈P/16⌉, K] = the largest K of each 16 partitions of src0, descending
  kLocalGather,  ///< dst[p, i·e + j] = src0[p, index(i)·e + j], e = imm0; index(i) = src1[16·⌊p/16⌋
                 ///< + i mod 16, ⌊i/16⌋] int16
  kQuantizeMx,   ///< dst [P, N] packed, dst1 [⌈P/8⌉, N] uint8 scales of 8 × 4 elements = quantised
                 ///< src0 [P, 4·N]
  kGeneric,      ///< an operation that is costed per element (imm0 passes) but has no executable
                 ///< semantics: evidence `estimated`
  // any engine's queue may start one
  kDma,  ///< dst = cast(src0), by the DMA engines of queue group `dma_queue`; completion posts the
         ///< updates
  kDmaGather,      ///< dst row i = src0 row src1[i] (src1: indices, int32)
  kDmaScatterAdd,  ///< dst row src1[i] += src0 row i
  kDmaTranspose,   ///< dst [F, P] = src0 [P, F]ᵀ, elements of 2 or 4 bytes
  kSendRecv,  ///< between the two cores of a pair: dst = the peer's src0, the peer's dst = src0.
              ///< The n-th of an engine meets the n-th of
              ///< the peer's same engine; each core's updates follow when its own dst is complete
  // control
  kSemaphore,  ///< only waits and updates
  kLoop,       ///< repeats up to the matching kEndLoop `count` times
  kEndLoop,
  kCoreBarrier,  ///< blocks this engine until the same engine of the pair's other core reaches its
                 ///< barrier; waits and updates as kSemaphore
  // Scalar
  kLoadTable,  ///< the tables of `activation`: the next functions of that set need no load
};

enum class AluOp : std::uint8_t {
  kNone,
  kAdd,
  kSubtract,
  kReverseSubtract,
  kMultiply,
  kDivide,
  kMax,
  kMin,
  kPower,
  kEqual,
  kNotEqual,
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kAnd,
  kOr,
  kXor,
  kBypass
};

enum class Activation : std::uint8_t {
  kIdentity,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSigmoid,
  kSilu,
  kSiluGrad,
  kTanh,
  kGelu,
  kGeluGrad,
  kRelu,
  kSin,
  kCos,
  kSquare,
  kAbs,
  kSign,
  kErf,
  kNeg
};

/// Logical groups of DMA rings; one transfer uses one group on all 16 engines.
enum class DmaQueue : std::uint8_t { kLoad, kStore, kSpill, kCollective };
inline constexpr int kNumDmaQueues = 4;

/// Who makes a transfer's descriptors (DGE: descriptor generation engine).
enum class DmaDescriptors : std::uint8_t {
  kDefault,   ///< hardware where it exists and the issuing engine reaches it; software for indexed
              ///< rows on GpSimd; else static
  kStatic,    ///< written to HBM before the program starts
  kSoftware,  ///< GpSimd writes them and is busy with it; the only way to gather and scatter by
              ///< indices that the program computes
  kHardware,  ///< one of the core's generators: Sync's or Scalar's; no gather, no scatter; v3 on
};

[[nodiscard]] std::string_view name(Engine);
[[nodiscard]] std::string_view name(MemorySpace);
[[nodiscard]] std::string_view name(DType);
[[nodiscard]] std::string_view name(Opcode);
[[nodiscard]] std::string_view name(AluOp);
[[nodiscard]] std::string_view name(Activation);
[[nodiscard]] std::string_view name(DmaQueue);
[[nodiscard]] std::string_view name(MatmulMode);
[[nodiscard]] std::string_view name(DmaDescriptors);
/// Inverse of `name`; nullopt for an unknown word.
template <typename E>
[[nodiscard]] std::optional<E> parse_name(std::string_view word);

[[nodiscard]] int size_bytes(DType);
/// Four values packed into one element: the operand of an MX matmul.
[[nodiscard]] bool is_mx(DType);
/// One fp8 value per element.
[[nodiscard]] bool is_fp8(DType);

}  // namespace trellis::sim::isa
