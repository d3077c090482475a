#pragma once

#include <span>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace trellis::device {

/// A type that an operator takes on CUDA and not on the CPU, and the type in which the CPU's kernel
/// computes for it.
struct Widening {
  c10::ScalarType from, to;
  bool back = true;  ///< results of type `to` become `from`
};

/// By name without overload, "aten::histc"; for all overloads, in place and into `out=` too.
[[nodiscard]] std::span<const Widening> widenings_of(std::string_view op);

}  // namespace trellis::device
