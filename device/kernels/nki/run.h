#pragma once

#include "device/kernels/nki/run_report.h"
#include "sim/sim.h"

namespace trellis::device::nki {

/// Throws Error for a kernel that does not fit or cannot be executed.
[[nodiscard]] RunReport run_kernel(const Document& document, const sim::SystemConfig& system,
                                   const RunOptions& options);

}  // namespace trellis::device::nki
