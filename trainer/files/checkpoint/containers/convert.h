#pragma once

#include <cstddef>
#include <span>

#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint {

/// True if values of one type can be written as the other: equal types, and the floating-point
/// types of 16 bits and more among each other.
[[nodiscard]] bool is_convertible(DType from, DType to);
/// Element by element, as torch's copy_ does it: to the nearest value, ties to even. REQUIRES:
/// is_convertible, and both spans have the same number of elements.
void convert_elements(DType from, std::span<const std::byte> values, DType to,
                      std::span<std::byte> into);
/// The elements as doubles. REQUIRES: is_convertible(from, kFloat64), or an integer type or bool.
void widen_elements(DType from, std::span<const std::byte> values, std::span<double> into);
/// True if widen_elements supports the type.
[[nodiscard]] bool is_widenable(DType type);

}  // namespace trellis::checkpoint
