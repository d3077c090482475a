#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/units.h"
#include "sim/isa/types.h"

namespace trellis::sim::isa {

inline constexpr int kMaxLoopDepth = 6;
inline constexpr int kMaxFreeDims = 4;
inline constexpr std::uint32_t kNone = 0xffffffffu;

/// A range of memory. HBM: `bytes`, bound at run by `slot` (external) or owned by the program (slot
/// -1). SBUF and PSUM: `address` and `bytes_per_partition` on partitions [start_partition,
/// start_partition + num_partitions).
struct Buffer {
  MemorySpace space = MemorySpace::kHbm;
  std::string name;
  std::int64_t bytes = 0;
  std::int32_t slot = -1;
  std::uint16_t start_partition = 0;
  std::uint16_t num_partitions = 0;
  std::uint32_t bytes_per_partition = 0;
  std::uint32_t address = 0;
  auto operator<=>(const Buffer&) const = default;
};

struct Dim {
  std::int64_t stride = 0;  ///< elements
  std::int32_t count = 1;
  auto operator<=>(const Dim&) const = default;
};

/// The elements of a buffer that an operand touches: `num_partitions` rows of the free dimensions
/// `dims` (outermost first). Element address = offset + p * partition_stride (HBM only; SBUF/PSUM
/// partitions are physical) + Σ dims
///                 + Σ loop_stride[d] * iteration of the d-th enclosing loop (outermost first).
/// `rotate_count` > 1: the operand lives in a ring of buffers, at a distance of `rotate_stride`
/// elements; the ring index is the number of times that this instruction has executed in this
/// program, modulo rotate_count (double buffering inside a loop).
struct AccessPattern {
  std::uint32_t buffer = kNone;
  DType dtype = DType::kFp32;
  std::uint16_t start_partition = 0;
  std::uint16_t num_partitions = 1;
  std::int64_t offset = 0;            ///< elements
  std::int64_t partition_stride = 0;  ///< elements, HBM only
  std::uint8_t num_dims = 0;
  std::array<Dim, kMaxFreeDims> dims{};
  std::array<std::int64_t, kMaxLoopDepth> loop_stride{};  ///< elements
  std::uint16_t rotate_count = 1;
  std::int64_t rotate_stride = 0;  ///< elements

  [[nodiscard]] bool present() const { return buffer != kNone; }
  [[nodiscard]] std::int64_t elements_per_partition() const;
  [[nodiscard]] std::int64_t elements() const { return elements_per_partition() * num_partitions; }
  [[nodiscard]] std::int64_t bytes() const { return elements() * size_bytes(dtype); }
  /// Bytes of the innermost contiguous run (one DMA descriptor row at best).
  [[nodiscard]] std::int64_t contiguous_bytes() const;
  auto operator<=>(const AccessPattern&) const = default;
};

/// Blocks until semaphore `id` holds at least `value`, then takes `value` away. One waiter per
/// semaphore, so loops need no iteration-dependent values (the hardware's wait + sub-imm).
struct SemaphoreWait {
  std::uint16_t id = 0;
  std::uint16_t value = 1;
  auto operator<=>(const SemaphoreWait&) const = default;
};
/// Adds `value` when the instruction (or the DMA that it started) completes.
struct SemaphoreUpdate {
  std::uint16_t id = 0;
  std::uint16_t value = 1;
  auto operator<=>(const SemaphoreUpdate&) const = default;
};

struct Instruction {
  Opcode opcode = Opcode::kSemaphore;
  AluOp alu = AluOp::kNone;
  AluOp alu2 = AluOp::kNone;
  Activation activation = Activation::kIdentity;
  DmaQueue dma_queue = DmaQueue::kLoad;
  MatmulMode mode = MatmulMode::kDense;
  DmaDescriptors dma_descriptors = DmaDescriptors::kDefault;
  bool accumulate = false;
  /// With accumulate in a loop: the first iteration of the innermost loop overwrites, the later
  /// ones accumulate.
  bool overwrite_first = false;
  std::uint32_t kernel = 0;  ///< index in Program::kernels: whose work this is
  std::int64_t count = 1;    ///< kLoop: iterations
  double imm0 = 0;
  double imm1 = 0;
  AccessPattern dst, src0, src1;
  AccessPattern dst1;  ///< the second result of the few opcodes that have one
  std::vector<SemaphoreWait> waits;
  std::vector<SemaphoreUpdate> updates;
  auto operator<=>(const Instruction&) const = default;
};

/// The origin of a group of instructions: one graph node or a fused chain of them.
struct Kernel {
  std::string name;        ///< e.g. "mm", "rms_norm", "fused[mul,add]"
  std::uint32_t node = 0;  ///< first graph node
  std::int64_t flops = 0;  ///< useful FLOPs of the operation
  bool estimated = false;  ///< true: costed, not lowered to executable instructions
  auto operator<=>(const Kernel&) const = default;
};

enum class CommAction : std::uint8_t { kStart, kWait };
struct CommPoint {
  CommAction action = CommAction::kStart;
  std::uint32_t slot = 0;  ///< index of the graph's communication node
  auto operator<=>(const CommPoint&) const = default;
};

/// Instructions of the five engines between two communication points. All engines and DMA queues
/// are idle at both ends.
struct Segment {
  std::array<std::vector<Instruction>, kNumEngines> queues;
  std::vector<CommPoint> then;  ///< in order, after the segment
  bool operator==(const Segment&) const = default;
};

/// The NEFF of this project: an executable, validated instruction stream for one NeuronCore.
struct Program {
  std::string name;
  std::vector<Buffer> buffers;
  std::vector<Kernel> kernels;
  std::vector<Segment> segments;
  bool operator==(const Program&) const = default;

  [[nodiscard]] ContentHash hash() const;
  [[nodiscard]] std::int64_t instruction_count() const;  ///< as written, loops counted once
};

/// Capacities, address ranges and supported instructions of a core; filled from the chip
/// configuration.
struct Limits {
  int core_version =
      2;  ///< NeuronCore-v2, v3, v4: decides which opcodes, dtypes and modes exist (features.h)
  int partitions = 128;
  std::int64_t sbuf_bytes_per_partition = 0;
  std::int64_t psum_bytes_per_partition = 16 * 1024;
  std::int64_t psum_bank_bytes = 2 * 1024;
  int max_moving = 512;  ///< columns of a matmul's result in fp32; in bf16 (v4) twice as many
  int max_stationary = 128;
  int semaphores = 256;
  std::int64_t max_descriptor_bytes = 64 * 1024;
  int hardware_dma_generators = 0;
};

/// One broken rule: where, which rule, the value.
struct Violation {
  std::size_t segment = 0;
  Engine engine = Engine::kSync;
  std::size_t index = 0;  ///< in the engine's queue
  std::string text;
};

/// Every rule of the hardware that the program breaks; empty means legal.
[[nodiscard]] std::vector<Violation> validate(const Program& program, const Limits& limits);

/// Text form: one line an instruction, golden-tested; parse(print(p)) == p.
[[nodiscard]] std::string print(const Program& program);
/// Throws ConfigError "line N: …" on malformed text.
[[nodiscard]] Program parse_program(const std::string& text);

}  // namespace trellis::sim::isa
