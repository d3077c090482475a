#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "device/kernels/nki/run_report.h"

namespace trellis::device::nki {

[[nodiscard]] std::string report_text(const RunReport& report);
/// Schema trellis.kernel_run/1.
[[nodiscard]] nlohmann::json report_json(const RunReport& report);

}  // namespace trellis::device::nki
