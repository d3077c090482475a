#pragma once

#include <string>

#include "sim/config/system_config.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The machine that a configuration runs on, with its own trainer.lnc. Throws ConfigError; what is
/// wrong with that key is said where it is.
[[nodiscard]] sim::SystemConfig load_machine(const RunConfig& config, const std::string& instance,
                                             sim::LoadOptions options);

}  // namespace trellis::trainer
