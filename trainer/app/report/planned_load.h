#pragma once

#include <vector>

#include "traces/report/expert_load.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Load of the experts in a step without data, by layer: every micro-batch of every rank
/// distributes its tokens over the experts in the same way. Empty without a mixture of experts.
[[nodiscard]] std::vector<analysis::ExpertLoad> planned_load(const RunConfig& config);

}  // namespace trellis::trainer
