#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/run_report.h"

namespace trellis::trainer {

/// The most memory that the process has had so far.
[[nodiscard]] std::int64_t peak_resident_bytes();

/// The process's peak memory and, for a training, the sum of the peaks of the ranks' tensors.
/// `memory`: null when the device keeps no account.
[[nodiscard]] std::string host_memory_text(const analysis::HostFacts& host,
                                           const analysis::RunFacts& facts,
                                           const nlohmann::json& memory);

/// Seconds with three significant digits.
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace trellis::trainer
