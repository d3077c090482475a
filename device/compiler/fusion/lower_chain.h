#pragma once

#include <cstdint>

#include "device/compiler/fusion/chain.h"

namespace trellis::device {

/// Appends the phases of a chain. REQUIRES: at least one output, no size is 0.
void lower_chain(ProgramBuilder& builder, std::uint32_t kernel, Chain chain);
/// Appends a program for the same numbers with a pass over HBM for every step. False, with nothing
/// appended: the chain reduces, or is one number.
[[nodiscard]] bool lower_chain_standalone(ProgramBuilder& builder, std::uint32_t kernel,
                                          const Chain& chain);

}  // namespace trellis::device
