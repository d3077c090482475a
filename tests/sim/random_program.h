#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "sim/isa/program.h"

namespace trellis::sim::isa::testing {

/// Fields of a record, drawn at random.
class RandomFields {
 public:
  explicit RandomFields(std::uint32_t seed) : rng_(seed) {}

  std::int64_t below(std::uint32_t n) { return static_cast<std::int64_t>(rng_() % n); }

  AccessPattern operand() {
    AccessPattern a;
    if (below(4) == 0) return a;
    a.buffer = static_cast<std::uint32_t>(below(5));
    a.dtype = static_cast<DType>(below(static_cast<std::uint32_t>(DType::kFp64) + 1));
    a.start_partition = static_cast<std::uint16_t>(below(128));
    a.num_partitions = static_cast<std::uint16_t>(below(129));
    a.offset = below(3) == 0 ? 0 : below(100000) - 50000;
    a.partition_stride = below(2) * below(9999);
    a.num_dims = static_cast<std::uint8_t>(below(kMaxFreeDims + 1));
    for (int d = 0; d < a.num_dims; ++d)
      a.dims[d] = {below(64) - 32, static_cast<std::int32_t>(below(600))};
    for (auto& stride : a.loop_stride) stride = below(2) * (below(1000) - 500);
    a.rotate_count = static_cast<std::uint16_t>(1 + below(3));
    a.rotate_stride = below(2) * (below(4096) - 2048);
    return a;
  }

  Instruction instruction() {
    Instruction i;
    i.opcode = static_cast<Opcode>(below(static_cast<std::uint32_t>(Opcode::kCoreBarrier) + 1));
    i.alu = static_cast<AluOp>(below(19));
    i.alu2 = static_cast<AluOp>(below(19));
    i.activation = static_cast<Activation>(below(20));
    i.dma_queue = static_cast<DmaQueue>(below(kNumDmaQueues));
    i.mode = static_cast<MatmulMode>(below(3));
    i.dma_descriptors = static_cast<DmaDescriptors>(below(4));
    i.accumulate = below(2) == 1;
    i.overwrite_first = below(2) == 1;
    i.kernel = static_cast<std::uint32_t>(below(4));
    i.count = 1 + below(9);
    i.imm0 = static_cast<double>(below(1000000)) / 7.0;
    i.imm1 = below(2) == 0 ? 0.0 : -std::numeric_limits<double>::infinity();
    i.dst = operand();
    i.src0 = operand();
    i.src1 = operand();
    i.dst1 = operand();
    for (std::int64_t n = below(3); n > 0; --n)
      i.waits.push_back(
          {static_cast<std::uint16_t>(below(256)), static_cast<std::uint16_t>(1 + below(4))});
    for (std::int64_t n = below(3); n > 0; --n)
      i.updates.push_back(
          {static_cast<std::uint16_t>(below(256)), static_cast<std::uint16_t>(1 + below(4))});
    return i;
  }

 private:
  std::mt19937 rng_;
};

/// A well-formed record with every field drawn at random; most rules of the hardware are broken.
/// For print and parse.
inline Program random_record(std::uint32_t seed) {
  RandomFields fields(seed);
  const auto below = [&](std::uint32_t n) { return fields.below(n); };
  Program p;
  p.name = "random \"" + std::to_string(seed) + "\"\n\\ end";
  for (int b = 0; b < 5; ++b) {
    p.buffers.push_back(
        {static_cast<MemorySpace>(below(3)), "b " + std::to_string(b), below(1 << 20),
         static_cast<std::int32_t>(below(4)) - 1, static_cast<std::uint16_t>(below(128)),
         static_cast<std::uint16_t>(below(128)), static_cast<std::uint32_t>(below(4096)),
         static_cast<std::uint32_t>(below(4096))});
  }
  for (int k = 0; k < 4; ++k)
    p.kernels.push_back({"fused[mul," + std::to_string(k) + "]",
                         static_cast<std::uint32_t>(below(99)), below(1 << 30), below(2) == 1});
  for (int s = 0; s < 3; ++s) {
    Segment segment;
    for (auto& queue : segment.queues) {
      for (std::int64_t n = below(6); n > 0; --n) queue.push_back(fields.instruction());
    }
    for (std::int64_t n = below(3); n > 0; --n)
      segment.then.push_back(
          {static_cast<CommAction>(below(2)), static_cast<std::uint32_t>(below(9))});
    p.segments.push_back(std::move(segment));
  }
  return p;
}

}  // namespace trellis::sim::isa::testing
