#pragma once

#include "sim/dma/dma_cost.h"
#include "tests/sim/tiny_program.h"

namespace trellis::sim::testing {

/// Buffers 0 and 2 in HBM, 1 in SBUF.
inline isa::Program memories() {
  using isa::MemorySpace;
  isa::Program p;
  p.buffers = {{MemorySpace::kHbm, "x", 1LL << 40, 0, 0, 0, 0, 0},
               {MemorySpace::kSbuf, "t", 0, -1, 0, 128, 65536, 0},
               {MemorySpace::kHbm, "y", 1LL << 40, 1, 0, 0, 0, 0}};
  return p;
}

/// A tile of rows that follow each other in HBM.
inline isa::Instruction load(int partitions, int columns, isa::DType dtype = isa::DType::kBf16,
                             int start_partition = 0) {
  isa::Instruction i;
  i.opcode = isa::Opcode::kDma;
  i.dst = isa::testing::tile(1, dtype, partitions, columns, start_partition);
  i.src0 = isa::testing::tile(0, dtype, partitions, columns);
  i.src0.partition_stride = columns;
  return i;
}

inline DmaTransfer cost_of(const isa::Instruction& i, const SystemConfig& system,
                           isa::Engine issuer = isa::Engine::kTensor) {
  return dma_transfer(i, issuer, memories(), system.chip.core.dma, system.chip.core.limits);
}

}  // namespace trellis::sim::testing
