#pragma once

#include <c10/core/ScalarType.h>

#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint {

/// Between the types of files and those of LibTorch. A type that the other side does not have is an
/// internal error, or a ConfigError when a file has it.
[[nodiscard]] DType dtype_of(c10::ScalarType type);
[[nodiscard]] c10::ScalarType scalar_type_of(DType dtype);

}  // namespace trellis::checkpoint
