#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/accuracy/training_run.h"
#include "traces/report/validated_record.h"

namespace trellis::analysis {

/// A published step, with how far off its recorded prediction is.
struct Neighbour {
  std::string id, source, release;  ///< release: of Neuron, "" where none is published
  StepPlace place;
  StepDistance distance;  ///< with a tenth for each release that the row is older than the newest
  double published_s = 0;
  std::optional<double> predicted_s;  ///< none: the record has no prediction of it
  /// Seconds of a micro-batch in which cores execute, and wait: published, predicted.
  std::optional<std::pair<MicroBatchTime, MicroBatchTime>> micro_batch;
};

/// The `most` nearest of the judged rows of benchmarks/published/training.yaml, nearest first, with
/// the predictions of predicted.json next to it. Throws ConfigError of those files.
[[nodiscard]] std::vector<Neighbour> nearest_rows(const StepPlace& run, std::size_t most);

/// Published rows that judge one part of a step, as predicted.json has them.
struct PartAccuracy {
  std::string part;     ///< key of kStepParts
  std::string subject;  ///< of `trellis accuracy`
  std::int64_t rows = 0;
  double median_error = 0, p90_error = 0, worst_error = 0;  ///< of |model / published - 1|
};
/// Matrix products and other compute by kernels and DMA, communication by collectives, of the
/// generation of `instance` where it has rows. Parts without rows are not in it.
[[nodiscard]] std::vector<PartAccuracy> part_accuracies(const std::string& generation);

}  // namespace trellis::analysis
