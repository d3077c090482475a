#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/accuracy/training_run.h"
#include "analysis/calibrate/fit.h"
#include "analysis/calibrate/measurements.h"

/// The result of `trellis calibrate`: schema trellis.calibrate/1.
namespace trellis::analysis {

struct CalibrateResult {
  std::vector<TrainingRun> runs;
  std::vector<Prediction> predictions;  ///< of the runs, all without error
  std::vector<MeasuredPart> parts;      ///< timed
  StepFit fit;
  Calibration calibration;
};

/// Fits to the rows of use fit, whose kernels and collectives are timed. Throws ConfigError when a
/// row could not be predicted.
[[nodiscard]] CalibrateResult calibrate(Measurements measurements,
                                        std::vector<Prediction> predictions,
                                        const std::string& source);
/// Fitted rows and held-out ones separately, each before and after, the worst first.
[[nodiscard]] std::string calibrate_text(const CalibrateResult& result);
[[nodiscard]] nlohmann::json calibrate_json(const CalibrateResult& result);

}  // namespace trellis::analysis
