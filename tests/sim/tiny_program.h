#pragma once

#include <cstdint>
#include <vector>

#include "sim/isa/program.h"

namespace trellis::sim::isa::testing {

inline Limits trn2_limits() {
  Limits limits;
  limits.core_version = 3;
  limits.sbuf_bytes_per_partition = 224 * 1024;
  return limits;
}

inline AccessPattern tile(std::uint32_t buffer, DType dtype, int partitions, int columns,
                          int start_partition = 0) {
  AccessPattern a;
  a.buffer = buffer;
  a.dtype = dtype;
  a.start_partition = static_cast<std::uint16_t>(start_partition);
  a.num_partitions = static_cast<std::uint16_t>(partitions);
  a.num_dims = 1;
  a.dims[0] = {1, columns};
  return a;
}

/// Two free buffers at the start; in the loop a product of weights and `moving`; the sum is done.
inline std::vector<Instruction> tiny_products(const AccessPattern& moving, int columns,
                                              const Instruction& loop, const Instruction& end) {
  Instruction prime;
  prime.opcode = Opcode::kSemaphore;
  prime.updates = {{1, 2}};
  Instruction stationary;
  stationary.opcode = Opcode::kLoadStationary;
  stationary.src0 = tile(2, DType::kBf16, 128, 128);
  Instruction matmul;
  matmul.opcode = Opcode::kMatmul;
  matmul.dst = tile(4, DType::kFp32, 128, columns);
  matmul.src0 = moving;
  matmul.accumulate = true;
  matmul.overwrite_first = true;
  matmul.waits = {{0, 1}};
  matmul.updates = {{1, 1}};
  Instruction done;
  done.opcode = Opcode::kSemaphore;
  done.updates = {{2, 1}};
  return {prime, loop, stationary, matmul, end, done};
}

/// The smallest complete kernel: load two operands, multiply in a loop with double buffering, copy
/// out of PSUM, store.
///   sync:   loop n { dma x → sbuf }      tensor: loop n { load_stationary, matmul }
///   vector: copy                         sync:   dma out
inline Program tiny_gemm(std::int64_t iterations = 4, int columns = 512) {
  Program p;
  p.name = "tiny gemm";
  const auto row = static_cast<std::uint32_t>(columns * 2);
  p.buffers = {
      {MemorySpace::kHbm, "x", iterations * 128 * columns * 2, 0, 0, 0, 0, 0},
      {MemorySpace::kHbm, "out", 128LL * columns * 4, 1, 0, 0, 0, 0},
      {MemorySpace::kSbuf, "weights", 0, -1, 0, 128, 256, 0},
      {MemorySpace::kSbuf, "moving", 0, -1, 0, 128, 2 * row, 256},
      {MemorySpace::kPsum, "sum", 0, -1, 0, 128, static_cast<std::uint32_t>(columns * 4), 0},
      {MemorySpace::kSbuf, "result", 0, -1, 0, 128, static_cast<std::uint32_t>(columns * 4),
       256 + 2 * row},
  };
  p.kernels = {{"mm", 0, iterations * 2 * 128 * 128 * columns, false}};
  Segment s;
  auto& sync = s.queues[static_cast<int>(Engine::kSync)];
  auto& tensor = s.queues[static_cast<int>(Engine::kTensor)];
  auto& vector = s.queues[static_cast<int>(Engine::kVector)];
  Instruction loop;
  loop.opcode = Opcode::kLoop;
  loop.count = iterations;
  Instruction end;
  end.opcode = Opcode::kEndLoop;

  AccessPattern moving = tile(3, DType::kBf16, 128, columns);
  moving.rotate_count = 2;
  moving.rotate_stride = columns;
  AccessPattern x = tile(0, DType::kBf16, 128, columns);
  x.partition_stride = columns;
  x.loop_stride[0] = 128LL * columns;

  Instruction load;
  load.opcode = Opcode::kDma;
  load.dst = moving;
  load.src0 = x;
  load.waits = {{1, 1}};
  load.updates = {{0, 1}};
  sync = {loop, load, end};

  tensor = tiny_products(moving, columns, loop, end);

  Instruction copy;
  copy.opcode = Opcode::kTensorCopy;
  copy.dst = tile(5, DType::kFp32, 128, columns);
  copy.src0 = tile(4, DType::kFp32, 128, columns);
  copy.waits = {{2, 1}};
  copy.updates = {{3, 1}};
  vector = {copy};

  Instruction store;
  store.opcode = Opcode::kDma;
  store.dma_queue = DmaQueue::kStore;
  store.dst = tile(1, DType::kFp32, 128, columns);
  store.dst.partition_stride = columns;
  store.src0 = tile(5, DType::kFp32, 128, columns);
  store.waits = {{3, 1}};
  sync.push_back(store);
  p.segments.push_back(std::move(s));
  return p;
}

/// Every ring group loads `transfers` tiles [128, row_bytes], each started by its own engine.
inline Program four_rings(std::int64_t transfers, int row_bytes) {
  Program p;
  p.name = "four rings";
  p.buffers = {
      {MemorySpace::kHbm, "x", 128LL * row_bytes, 0, 0, 0, 0, 0},
      {MemorySpace::kSbuf, "tile", 0, -1, 0, 128, static_cast<std::uint32_t>(row_bytes), 0}};
  p.kernels = {{"load", 0, 0, false}};
  Segment s;
  for (int q = 0; q < kNumDmaQueues; ++q) {
    Instruction loop;
    loop.opcode = Opcode::kLoop;
    loop.count = transfers;
    Instruction load;
    load.opcode = Opcode::kDma;
    load.dma_queue = static_cast<DmaQueue>(q);
    load.dma_descriptors = DmaDescriptors::kStatic;
    load.dst = tile(1, DType::kUInt8, 128, row_bytes);
    load.src0 = tile(0, DType::kUInt8, 128, row_bytes);
    load.src0.partition_stride = row_bytes;
    Instruction end;
    end.opcode = Opcode::kEndLoop;
    s.queues[static_cast<std::size_t>(q)] = {loop, load, end};
  }
  p.segments.push_back(std::move(s));
  return p;
}

}  // namespace trellis::sim::isa::testing
