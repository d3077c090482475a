#pragma once

#include <vector>

#include "traces/report/expert_load.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// What the routers of a step without data do, by layer: each micro-batch of each rank shares its
/// tokens in one way. Empty: no mixture of experts.
[[nodiscard]] std::vector<analysis::ExpertLoad> planned_load(const RunConfig& config);

}  // namespace trellis::trainer
