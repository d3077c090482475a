#pragma once

#include <string>
#include <vector>

#include "device/kernels/nki/placement.h"
#include "sim/config/system_config.h"

namespace trellis::device::nki {

/// A kernel as the core executes it. Each line of the kernel's file is a kernel of the program, by
/// the line's name.
struct Lowered {
  isa::Program program;
  Placement placement;
  std::vector<std::uint32_t> buffers;  ///< of each tensor in HBM
};

/// Program order, rings of two. Throws Error (kDoesNotFit) from place_tiles, and ConfigError when
/// the program needs more semaphores than there are.
[[nodiscard]] Lowered lower(const Document& document, const sim::CoreConfig& core);

/// The instructions that the core refuses, each with the line: partitions, sizes, banks, types,
/// engines.
struct Refusal {
  std::string line, text;
};
[[nodiscard]] std::vector<Refusal> refusals(const Document& document, const Lowered& lowered,
                                            const isa::Limits& limits);

}  // namespace trellis::device::nki
