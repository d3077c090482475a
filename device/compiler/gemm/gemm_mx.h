#pragma once

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"

namespace trellis::device {

/// One operand of an MX product, as the array reads it: four neighbours of the contraction lie in
/// one packed element, and one scale (uint8, a power of two biased by 127) belongs to 8 rows of
/// them, which are 32 values.
struct MxOperand {
  HbmView data;    ///< [k / 4, columns], a packed MX type, contiguous
  HbmView scales;  ///< [k / 32, columns], uint8, contiguous
};

/// c[m, n] = a[k, m]ᵀ · b[k, n].
struct MxGemm {
  MxOperand a, b;
  HbmView c;  ///< [m, n], contiguous
};

inline constexpr std::int64_t kMxGroup = 32;  ///< values of the contraction that share a scale

/// Appends the phase. REQUIRES: NeuronCore-v4, k a positive multiple of 32, no size is 0.
void lower_mx_gemm(ProgramBuilder& builder, std::uint32_t kernel, const MxGemm& gemm);

}  // namespace trellis::device
