#pragma once

#include <string>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The configuration as a YAML file in which nothing is left to defaults. Loading it gives an equal RunConfig.
[[nodiscard]] std::string to_resolved_yaml(const RunConfig& config);

}  // namespace trellis::trainer
