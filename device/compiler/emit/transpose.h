#pragma once

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"

namespace trellis::device {

/// True if reading `source` with dimension `inner` innermost would be element by element while
/// another dimension is contiguous.
[[nodiscard]] bool worth_transposing(const HbmView& source, std::size_t inner);

/// A contiguous copy of `source` in the program's own HBM, by contiguous loads and transposes on
/// the Tensor engine. REQUIRES: worth_transposing(source, last dimension larger than 1).
[[nodiscard]] HbmView transpose_to_scratch(ProgramBuilder& builder, std::uint32_t kernel,
                                           const HbmView& source);

}  // namespace trellis::device
