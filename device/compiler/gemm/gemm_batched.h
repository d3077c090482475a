#pragma once

#include "device/compiler/gemm/gemm.h"

namespace trellis::device {

/// A product of many small matrices (attention heads): several of them share each transfer and each
/// PSUM bank. Appends its phase and returns true, or changes nothing when the product has another
/// form: one matrix, an addend, a factor, or sides above 512.
bool lower_batched_gemm(ProgramBuilder& builder, std::uint32_t kernel, const Gemm& gemm);

}  // namespace trellis::device
