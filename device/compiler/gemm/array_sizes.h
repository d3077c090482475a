#pragma once

#include <cstdint>

#include "sim/isa/types.h"

/// Sizes of the systolic array and its memories that all products are cut by (NKI programming
/// model: 128 partitions, 512 moving columns, 8 PSUM banks).
namespace trellis::device {

inline constexpr std::int64_t kP = 128;       ///< partitions, stationary columns
inline constexpr std::int64_t kMoving = 512;  ///< moving columns, one PSUM bank of fp32
inline constexpr std::int64_t kBanks = 8;     ///< of PSUM

/// By default the array reads fp32 operands as tf32, as Neuron's auto-cast does.
[[nodiscard]] inline sim::isa::DType array_dtype(sim::isa::DType dtype, bool four_passes) {
  return dtype == sim::isa::DType::kFp32 && !four_passes ? sim::isa::DType::kTf32 : dtype;
}

}  // namespace trellis::device
