#pragma once

#include <cstdint>

#include "device/compiler/gemm/gemm.h"

namespace trellis::device {

/// Appends the phases of one matrix product. REQUIRES: no size is 0.
void lower_gemm(ProgramBuilder& builder, std::uint32_t kernel, Gemm gemm);

}  // namespace trellis::device
