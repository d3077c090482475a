#pragma once

#include <vector>

#include "device/compiler/emit/program_builder.h"
#include "device/compiler/gemm/gemm.h"

namespace trellis::device {

/// A long K is cut so that blocks have room in SBUF, and further where wider blocks are clearly
/// worth the way of the sum, which passes through HBM in fp32. One product: K is not cut.
[[nodiscard]] std::vector<Gemm> best_slices(ProgramBuilder& builder, const Gemm& gemm);

}  // namespace trellis::device
