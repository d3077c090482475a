#pragma once

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Ranks of the run against the machine; throws ConfigError (needs N ranks, instance has M cores ×
/// nodes) that names instances which are large enough.
void check_fits_machine(const RunConfig& config, const sim::SystemConfig& system);

}  // namespace trellis::trainer
