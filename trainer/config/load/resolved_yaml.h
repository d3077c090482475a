#pragma once

#include <string>

#include "base/yaml/yaml.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The configuration as a YAML file in which nothing is left to defaults or to other files.
/// `source`: the file it comes from, whose keys that have no field (compiler flags, checkpoints …)
/// are kept. Loading the result gives an equal RunConfig.
[[nodiscard]] std::string to_resolved_yaml(const RunConfig& config, const YamlMap& source);

}  // namespace trellis::trainer
