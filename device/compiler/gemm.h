#pragma once

#include <optional>

#include "device/compiler/gemm_plan.h"
#include "device/compiler/hbm_view.h"
#include "device/compiler/program_builder.h"

namespace trellis::device {

/// c[batch…, m, n] = alpha · a[batch…, m, k] · b[batch…, k, n] + beta · addend[batch…, m, n]; any strides, 0 broadcasts.
/// `activated` and `factor` have c's sizes and contiguous rows, and no batch.
struct Gemm {
  HbmView a, b, c;
  std::optional<HbmView> addend;
  double alpha = 1;
  double beta = 1;
  isa::Activation activation = isa::Activation::kIdentity;
  std::optional<HbmView> activated;  ///< activation(c) goes there, beside c
  std::optional<HbmView> factor;     ///< c is what the product gives times activation(factor)
  bool four_passes = false;  ///< fp32 operands in full precision, four passes of the array, instead of being read as tf32 in one
  std::optional<GemmPlan> plan;  ///< how to cut it; none: the best one
};

/// Appends the phases of one matrix product. REQUIRES: no size is 0.
void lower_gemm(ProgramBuilder& builder, std::uint32_t kernel, Gemm gemm);

/// dst[k, column] = src[row = column, k] for `rows` × `depth` elements of HBM (k contiguous): contiguous loads, then transposes on the
/// Tensor engine. `dst` is laid out [128 partitions of k, k / 128, width].
struct TransposedLoad {
  std::uint32_t buffer = 0;
  isa::DType dtype = isa::DType::kBf16;
  Index offset;                 ///< element (0, 0)
  std::int64_t row_stride = 0;
  std::int64_t depth_stride = 1;
  std::int64_t rows = 0, depth = 0;
  TileId dst = 0;
  std::int64_t width = 0;       ///< elements between consecutive k tiles in dst
  std::int64_t column = 0;      ///< first column in dst
  const Phase::Region* staging = nullptr;  ///< where the loads land, as a ring of what fits; nullptr: a ring of 3 that lives as long as this load
  isa::DType turned = isa::DType::kFp32;   ///< in PSUM; from NeuronCore-v3 on 16-bit data may stay so
  const Phase::Region* banks = nullptr;    ///< 4 PSUM banks for the transposes; nullptr: some that live as long as this load
};
void load_transposed(Phase& phase, const TransposedLoad& what);

}  // namespace trellis::device
