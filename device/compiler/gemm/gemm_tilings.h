#pragma once

#include "device/compiler/gemm/gemm.h"

namespace trellis::device {

/// Plain loop orders over tiles of 128 rows × 512 columns, as tutorials build a product up. They
/// move more than lower_gemm's plans do, and are there to be compared with. All of them prefetch
/// tiles as far as SBUF allows.
enum class GemmTiling : std::uint8_t {
  kTiled,        ///< for m, n, k: both tiles are loaded for every product
  kHoisted,      ///< for m: the row of a's tiles is loaded once; for n, k: b's tiles
  kBlockedFree,  ///< as hoisted, for 2 × 2 tiles of c at a time
};

/// Appends the phase. REQUIRES: no batch, no addend, a not transposed, alpha 1, m a multiple of
/// 256, n of 1,024, k of 256.
void lower_gemm_tiling(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm,
                       GemmTiling tiling);

}  // namespace trellis::device
