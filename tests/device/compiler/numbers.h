#pragma once

#include "sim/functional/interpreter.h"

namespace trellis::device::testing {

using sim::functional::Arithmetic;
using sim::functional::decode;
using sim::functional::encode;
using sim::functional::Interpreter;
using sim::functional::MiniFloat;
using sim::functional::mx_bits;
using sim::functional::mx_format;
using sim::functional::mx_scale;
using sim::functional::unpack;
using sim::functional::Values;
using sim::isa::DType;

inline constexpr DType kF = DType::kFp32, kB = DType::kBf16;

/// A run in double, whose error is that of the program alone, in the order that the seed draws.
inline sim::functional::Options in_double(std::uint32_t seed) {
  return {.seed = seed, .arithmetic = Arithmetic::kDouble};
}

}  // namespace trellis::device::testing
