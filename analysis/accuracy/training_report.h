#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/accuracy/training_run.h"
#include "traces/report/validity.h"

namespace trellis::analysis {

/// Published training steps compared with their predictions: the worst first, sums per group, the
/// trend of the signed error; separately the excluded rows, with their predictions, and those that
/// could not be run. REQUIRES: as many predictions as runs.
[[nodiscard]] std::string training_text(const std::vector<TrainingRun>& runs,
                                        const std::vector<Prediction>& predictions);
/// Schema trellis.accuracy/1, subject "training".
[[nodiscard]] nlohmann::json training_json(const std::vector<TrainingRun>& runs,
                                           const std::vector<Prediction>& predictions);
/// The ranges that the judged rows cover, and how far off from them the steps are that `trellis
/// simulate` prints (without what other software adds), by instance and size class. Throws
/// ConfigError when one of them has no prediction.
[[nodiscard]] ValidatedRecord validated_record(const std::vector<TrainingRun>& runs,
                                               const std::vector<Prediction>& predictions);
/// The exit code of the first row that could not be run; 0: all could.
[[nodiscard]] int exit_code_of(const std::vector<Prediction>& predictions);

}  // namespace trellis::analysis
