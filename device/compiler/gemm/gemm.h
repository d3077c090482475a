#pragma once

#include <optional>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"
#include "device/compiler/gemm/gemm_plan.h"

namespace trellis::device {

/// c[batch…, m, n] = alpha · a[batch…, m, k] · b[batch…, k, n] + beta · addend[batch…, m, n]; any
/// strides, 0 broadcasts. `activated` and `factor` have c's sizes and contiguous rows, and no
/// batch.
struct Gemm {
  HbmView a, b, c;
  std::optional<HbmView> addend;
  double alpha = 1;
  double beta = 1;
  isa::Activation activation = isa::Activation::kIdentity;
  std::optional<HbmView> activated;  ///< activation(c) goes there, next to c
  std::optional<HbmView> factor;     ///< c is what the product gives times activation(factor)
  bool four_passes = false;  ///< fp32 operands in full precision, four passes of the array, instead
                             ///< of being read as tf32 in one
  std::optional<GemmPlan> plan;  ///< how to cut it; none: the best one
};

}  // namespace trellis::device
