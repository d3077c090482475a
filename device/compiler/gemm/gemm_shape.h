#pragma once

#include <cstddef>
#include <cstdint>

#include "device/compiler/gemm/gemm.h"
#include "device/compiler/gemm/gemm_plan.h"

namespace trellis::device {

/// K is the contiguous dimension: the operand must be brought to the partitions by transposes.
[[nodiscard]] bool k_is_contiguous(const HbmView& v, std::size_t rows, std::size_t depth);

/// K tiles that one pass of the array takes: 2 in double-row mode.
[[nodiscard]] std::int64_t k_tiles_per_pass(const Gemm& gemm, int core_version);

/// The shape by which a plan is chosen.
[[nodiscard]] GemmShape gemm_shape(const Gemm& gemm, const sim::CoreConfig& core);

}  // namespace trellis::device
