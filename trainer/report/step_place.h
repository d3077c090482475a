#pragma once

#include <string>

#include "trainer/config/run_config.h"
#include "trainer/report/validity.h"

namespace trellis::trainer {

/// What the record of published steps knows of a run.
[[nodiscard]] StepPlace step_place(const RunConfig& config, const std::string& instance, int nodes);

}  // namespace trellis::trainer
