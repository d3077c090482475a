#pragma once

#include <string>

#include "trainer/config/run_config.h"
#include "analysis/report/validity.h"

namespace trellis::analysis {

/// What the record of published steps knows of a run.
[[nodiscard]] StepPlace step_place(const trainer::RunConfig& config, const std::string& instance,
                                   int nodes);

}  // namespace trellis::analysis
