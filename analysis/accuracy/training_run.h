#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/accuracy/published_rows.h"
#include "analysis/accuracy/training_fit.h"
#include "traces/report/calibration.h"

/// Predictions of published training steps: `trellis simulate`, one process a row.
namespace trellis::analysis {

/// Seconds of one micro-batch.
struct MicroBatchTime {
  double device = 0;  ///< in which the cores execute
  double idle = 0;    ///< in which they wait for the host
};

/// The run that predicts a row of benchmarks/published/training.yaml.
struct TrainingRun {
  PublishedRow row;
  std::filesystem::path config;
  std::vector<std::string> overrides;  ///< key.path=value
  int nodes = 1;
  std::string path, family;  ///< the software that trained, and models of one lineage
  std::optional<MicroBatchTime> telemetry;  ///< as neuron-monitor samples show it
};

/// The result of a run. A run that failed has an error and nothing else.
struct Prediction {
  double step_s = 0;  ///< expected of the row's software: `simulated` and what the fitted software
                      ///< numbers add to it
  SimulatedRow simulated;
  std::int64_t parameters = 0;  ///< of the model
  double mfu = 0;
  MicroBatchTime micro_batch;  ///< of the rank that waits least for others
  StepParts parts;             ///< of the step; nothing when the report has no breakdown
  bool kept = false;           ///< of an earlier call
  double host_s = 0;           ///< what it took; of a kept one, then
  int exit_code = 0;
  std::string error = {};
};

struct TrainingRequest {
  std::filesystem::path program;  ///< the trellis to run
  std::filesystem::path results;  ///< folder: one below it per row, with the run's files and its
                                  ///< result, which a later call keeps
  int jobs = 1;                   ///< runs at a time
  std::vector<std::string> hardware;  ///< --set of `simulate`
  bool calibrated = true;
};

/// The rows of benchmarks/published/training.yaml. Throws ConfigError with every problem of the
/// file.
[[nodiscard]] std::vector<TrainingRun> read_training_runs();

/// Predictions of the runs, in their order. `done`: called for each one when it is there, one at a
/// time. A result is kept as long as the configuration, the machine's numbers and the program are
/// the same.
[[nodiscard]] std::vector<Prediction> predict(
    const std::vector<TrainingRun>& runs, const TrainingRequest& request,
    const std::function<void(const TrainingRun&, const Prediction&)>& done);

}  // namespace trellis::analysis
