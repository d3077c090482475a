#pragma once

#include "device/compiler/emit/phase.h"
#include "device/compiler/gemm/gemm_plan.h"

namespace trellis::device {

/// dst[k, row] = src[row, k] for `rows` × `depth` elements of HBM (k contiguous): contiguous loads,
/// then transposes on the Tensor engine. `dst` is laid out [128 partitions of k, k / 128, width].
struct TransposedLoad {
  std::uint32_t buffer = 0;
  isa::DType dtype = isa::DType::kBf16;
  Index offset;  ///< element (0, 0)
  std::int64_t row_stride = 0;
  std::int64_t rows = 0, depth = 0;
  TileId dst = 0;
  std::int64_t width = 0;  ///< elements between consecutive k tiles in dst
  std::int64_t first = 0;  ///< row of dst that the first one becomes
  Phase::Region staging;   ///< where the loads land, as rings of what fits
  isa::DType transposed =
      isa::DType::kFp32;  ///< in PSUM; from NeuronCore-v3 on 16-bit data may stay so
  Phase::Region banks;    ///< kTransposeBanks PSUM banks for the transposes
};
void load_transposed(Phase& phase, const TransposedLoad& what);

}  // namespace trellis::device
