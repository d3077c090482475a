#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// Every parameter with value, source and evidence, the totals that follow from them, the wiring,
/// and where documents disagree (schema trellis.describe/1).
[[nodiscard]] nlohmann::json describe(const SystemConfig& system);

/// The same as tables for people.
[[nodiscard]] std::string describe_text(const SystemConfig& system);

}  // namespace trellis::sim
