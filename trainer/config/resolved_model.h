#pragma once

#include "trainer/config/run_config.h"
#include "trainer/config/yaml_writer.h"

namespace trellis::trainer {

/// Section `model` with every size in it: config.json is not needed any more.
void write_model(YamlWriter& out, const RunConfig& config, const YamlMap& source);

}  // namespace trellis::trainer
