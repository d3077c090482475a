#pragma once

#include <string>
#include <vector>

#include "device/kernels/nki/run_report.h"

namespace trellis::device::nki {

/// Lists the changes that would make the kernel faster, each with its numbers.
[[nodiscard]] std::vector<std::string> advise(const Document& document,
                                              const sim::SystemConfig& system,
                                              const RunReport& report);

}  // namespace trellis::device::nki
