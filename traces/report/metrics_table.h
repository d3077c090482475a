#pragma once

#include <filesystem>
#include <vector>

#include "traces/table_request.h"

namespace trellis::analysis {

/// metrics.jsonl of runs as one table, schema trellis.metrics/1: `run` (text: the folder as given),
/// `step` and `consumed_samples` (integers), then every scalar that a run logged, in alphabetical
/// order (real; null where a line has none, or has NaN). Rows in the order of runs and lines.
/// `runs`: folders, or files of this form. Throws ConfigError (file:line) for what is no such line.
[[nodiscard]] trainer::TableRequest metrics_table(const std::vector<std::filesystem::path>& runs);

}  // namespace trellis::analysis
