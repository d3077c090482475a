#pragma once

#include "traces/report/run_report.h"
#include "trainer/config/run_config.h"
#include "trainer/requests/run_request.h"

namespace trellis::trainer {

/// The part of a run's report that is known before the run begins. Reads the record of what was
/// validated, and the calibration that the request names. Throws ConfigError.
[[nodiscard]] analysis::RunFacts facts_of(const RunRequest& request, const RunConfig& config);

}  // namespace trellis::trainer
