#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

#include "runtime/calls/comm_call.h"

namespace trellis::runtime {

/// Throws Error when elements of `dtype` cannot be combined by `reduction`.
void check_reducible(c10::ScalarType dtype, Reduction reduction);

/// targets[*][i] = sources[0][i] ∘ sources[1][i] ∘ … in exactly this order, and in the sources'
/// type: a ring passes partial
/// results on in it, so bfloat16 and float16 are rounded after every source. Averages divide by the
/// number of sources, which rounds once more. A target may be one of the sources.
/// REQUIRES: sources is not empty, check_reducible passed.
void reduce_into(std::span<std::byte* const> targets, std::span<const std::byte* const> sources,
                 std::int64_t count, c10::ScalarType dtype, Reduction reduction);

}  // namespace trellis::runtime
