#pragma once

#include <cstdint>
#include <vector>

#include "device/kernels/nki/run_report.h"

namespace trellis::device::nki {

/// The work of a kernel, each iteration of a loop counted.
struct Work {
  std::int64_t instructions = 0, elements = 0, products = 0;
};
[[nodiscard]] Work work_of(const Document& document);

/// Runs the program on the interpreter: the outputs compared with their references, and the same
/// under shuffled interleavings. Throws Error (kHang) for a deadlock.
void run_numbers(const Document& document, const Lowered& lowered, const isa::Limits& limits,
                 const RunOptions& options, RunReport& report);

}  // namespace trellis::device::nki
