#pragma once

#include <cstdint>
#include <vector>

#include "sim/isa/program.h"

/// The small programs of the published DMA measurements, written by hand: what was measured is
/// the hardware, not a compiler.
namespace trellis::analysis {

/// Loads of equal tiles into SBUF, one after the other, nothing else.
struct TileLoads {
  int partitions = 128;
  std::int64_t row_bytes = 1024;
  std::int64_t row_stride_bytes = 0;  ///< in HBM; 0: rows follow each other
  std::int64_t tiles = 1;             ///< rounded up to a multiple of the issuers
  std::vector<sim::isa::Engine> issuers = {sim::isa::Engine::kSync};  ///< take turns
  sim::isa::DmaDescriptors descriptors = sim::isa::DmaDescriptors::kDefault;
};
[[nodiscard]] sim::isa::Program tile_loads(const TileLoads& what);

/// Figures nki-dma-intro-3 and 5: load a bf16 tile, exp on Scalar, store. Kernels 0 (load), 1
/// (exp), 2 (store) name the steps on the timeline. Software descriptors: GpSimd starts both
/// transfers; else Sync loads and GpSimd stores.
[[nodiscard]] sim::isa::Program load_exp_store(int partitions, int columns, bool software);

}  // namespace trellis::analysis
