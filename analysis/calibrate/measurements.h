#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "analysis/accuracy/training_run.h"

namespace trellis::analysis {

/// A user's own training steps as rows to predict: CSV with a head of config, instance, step_s, use
/// (fit or test) and, if wanted, nodes, overrides (key.path=value, separated by spaces) and id.
/// Configurations are named from the file's folder. Empty lines and those that begin with # are
/// skipped. Throws ConfigError with every problem as file:line:column: head without a column, or
/// with an unknown one; missing or impossible values (a time that is not above 0, nodes below 1, an
/// unknown machine, a use that is neither); a configuration that is not there or not legal; too few
/// rows of fit.
[[nodiscard]] std::vector<TrainingRun> read_measurements(const std::filesystem::path& file);

/// The cells of one line; quotes as in RFC 4180. False: a quote that does not end.
[[nodiscard]] bool split_csv(const std::string& line, std::vector<std::string>& cells);

}  // namespace trellis::analysis
