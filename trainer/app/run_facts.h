#pragma once

#include "analysis/report/run_report.h"
#include "trainer/app/run_request.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// What a run's report says of it before it has begun. Throws ConfigError of its calibration file.
[[nodiscard]] analysis::RunFacts facts_of(const RunRequest& request, const RunConfig& config);

}  // namespace trellis::trainer
