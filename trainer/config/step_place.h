#pragma once

#include <string>
#include <vector>

#include "traces/report/validity.h"
#include "trainer/config/run_config.h"

namespace trellis::analysis {

/// Describes a run in the properties by which published steps are recorded. `hardware`: the numbers
/// of the machine that the run changes (`simulate --set`).
[[nodiscard]] StepPlace step_place(const trainer::RunConfig& config, const std::string& instance,
                                   int nodes, const std::vector<std::string>& hardware = {});

}  // namespace trellis::analysis
