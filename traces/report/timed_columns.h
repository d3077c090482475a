#pragma once

#include <string>
#include <vector>

#include "traces/report/report_file.h"

namespace trellis::analysis {

/// Runs of which at least one was measured as columns; of two, how far the second is from the
/// first, and where most of that is.
[[nodiscard]] std::string timed_columns_text(const std::vector<ReportFile>& runs);

}  // namespace trellis::analysis
