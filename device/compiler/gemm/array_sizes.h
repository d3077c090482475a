#pragma once

#include <cstdint>

#include "base/integer_math.h"
#include "sim/isa/types.h"

/// Sizes of the systolic array and its memories that all products are cut by (NKI programming
/// model: 128 partitions, 512 moving columns, 8 PSUM banks).
namespace trellis::device {

inline constexpr std::int64_t kP = 128;       ///< partitions, stationary columns
inline constexpr std::int64_t kMoving = 512;  ///< moving columns, one PSUM bank of fp32
inline constexpr std::int64_t kBanks = 8;     ///< of PSUM

/// Columns that move at a time of a part with `columns`: as few times as a bank allows, and equally
/// wide, since a narrow rest costs as many instructions and weight loads as a wide one.
[[nodiscard]] constexpr std::int64_t moving_width(std::int64_t columns) {
  constexpr std::int64_t kStep = 64;  // the array's shortest interval
  const std::int64_t each = ceil_div(columns, ceil_div(columns, kMoving));
  return columns <= kMoving ? columns : ceil_div(each, kStep) * kStep;
}

/// By default the array reads fp32 operands as tf32, as Neuron's auto-cast does.
[[nodiscard]] inline sim::isa::DType array_dtype(sim::isa::DType dtype, bool four_passes) {
  return dtype == sim::isa::DType::kFp32 && !four_passes ? sim::isa::DType::kTf32 : dtype;
}

}  // namespace trellis::device
