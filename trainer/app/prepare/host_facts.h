#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/run_report.h"

namespace trellis::trainer {

/// The most memory that the process has had so far.
[[nodiscard]] std::int64_t peak_resident_bytes();

/// In addition to what the ranks' tensors take on the device, all of them at their peaks. Null: the
/// device keeps no account.
[[nodiscard]] std::string host_memory_text(const analysis::HostFacts& host,
                                           const analysis::RunFacts& facts,
                                           const nlohmann::json& memory);

/// Three digits.
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace trellis::trainer
