#pragma once

#include <string>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// Names of all instances in the shipped configurations.
[[nodiscard]] std::vector<std::string> instance_names();
/// Loads the shipped configuration of an instance. Throws ConfigError with the nearest names when
/// it is unknown.
[[nodiscard]] SystemConfig load_system(const std::string& instance, int nodes = 1);
[[nodiscard]] SystemConfig load_system(const std::string& instance, const LoadOptions& options);

}  // namespace trellis::sim
