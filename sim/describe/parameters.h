#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// "70 spec, 12 measured, 3 calibrated, 20 estimated", then a row of each.
[[nodiscard]] std::string parameters_text(const std::vector<Parameter>& parameters);
[[nodiscard]] nlohmann::json parameters_json(const std::vector<Parameter>& parameters);

}  // namespace trellis::sim
