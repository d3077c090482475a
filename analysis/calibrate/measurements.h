#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "analysis/accuracy/training_run.h"
#include "analysis/calibrate/measured_part.h"

namespace trellis::analysis {

/// A user's own measurements.
struct Measurements {
  std::vector<TrainingRun> runs;    ///< training steps, to predict
  std::vector<MeasuredPart> parts;  ///< kernels and collectives, to time
};

/// CSV with a head of instance, use (fit or test) and what the rows' kinds need; column `kind` says
/// step (the default), kernel or collective. A step has config and step_s, or run: the folder of a
/// run that a device of LibTorch timed; if wanted nodes, overrides (key.path=value, separated by
/// spaces) and id. Kernels and collectives: read_part. Configurations are named from the file's
/// folder. Empty lines and those that begin with # are skipped. Throws ConfigError with every
/// problem as file:line:column: head without a column, or with an unknown one; missing or
/// impossible values (a time that is not above 0, nodes below 1, an unknown machine, a use that is
/// neither); a configuration that is not there or not legal; too few rows of fit.
[[nodiscard]] Measurements read_measurements(const std::filesystem::path& file);

/// The cells of one line; quotes as in RFC 4180. False: a quote that does not end.
[[nodiscard]] bool split_csv(const std::string& line, std::vector<std::string>& cells);

}  // namespace trellis::analysis
