#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// Every parameter with value, source and evidence, and what follows from them (schema trellis.describe/1).
[[nodiscard]] nlohmann::json describe(const SystemConfig& system);

/// The same as a table for people.
[[nodiscard]] std::string describe_text(const SystemConfig& system);

}  // namespace trellis::sim
