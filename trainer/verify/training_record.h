#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "trainer/data/data_module.h"
#include "trainer/loop/training_checkpoints.h"
#include "trainer/verify/capture.h"

namespace trellis::trainer {

/// A number of a rank's training, or the name of one of its tensors.
struct RecordedNumber {
  std::string item;   ///< "step", "random state", "learning rate", "schedule", "loss", …
  std::string value;  ///< with every digit
  bool operator==(const RecordedNumber&) const = default;
};
struct RecordedTensor {
  std::string item;       ///< "weight", "master", "state exp_avg", "moving average"
  std::string parameter;  ///< name
  bool operator==(const RecordedTensor&) const = default;
};

/// State of all ranks after a step, or when they continue after one.
struct RecordedStep {
  bool resumed = false;                              ///< before the first step of a run
  std::vector<std::vector<RecordedNumber>> numbers;  ///< by rank
  std::vector<std::vector<ContentHash>> tensors;     ///< by rank, as TrainingRecord::tensors
  std::map<std::int64_t, ContentHash> samples;       ///< by place in the global batch
  double loss = 0;
  [[nodiscard]] ContentHash hash() const;  ///< of everything
};

/// Record of a training run, step by step: hashes of weights, masters, optimizer states and moving
/// averages, numbers as texts, and which samples each step read. Two runs are compared by it.
struct TrainingRecord {
  std::vector<std::vector<RecordedTensor>> tensors;  ///< by rank
  std::map<std::int64_t, RecordedStep> steps;        ///< by number of the step that is done
  NamedTensors last;  ///< un-sharded, by layout-independent key; after the last step, if asked for
};

/// Where two records differ first: in the order of steps, and in a step in the order in which it is
/// computed, so that what is named is a cause and not what follows from it.
struct RecordDifference {
  std::int64_t step = 0;
  bool resumed = false;  ///< in the state with which the run goes on after the step
  std::string item;      ///< "samples", "weight", …
  int rank = -1;         ///< −1: of no single rank
  std::string tensor;    ///< parameter, or place of a sample; "" for a number
  std::string expected, got;
  /// "after step 13, as resumed: state exp_avg of model.norm.weight on rank 3: expected …, got …"
  [[nodiscard]] std::string text() const;
  bool operator==(const RecordDifference&) const = default;
};

/// The first difference of all steps of `got` from those of `expected`; none: they are equal.
/// `samples_only`: of runs in different layouts.
[[nodiscard]] std::optional<RecordDifference> first_difference(const TrainingRecord& got,
                                                               const TrainingRecord& expected,
                                                               bool samples_only);

/// Fills a record during a run. Safe from the threads of all ranks.
class TrainingRecorder {
 public:
  /// `last_step`: after which the tensors are gathered; 0: never.
  TrainingRecorder(int world_size, std::int64_t last_step);
  /// After a step (`result`), or before the first one of a run (null).
  void add(const TrainingState& state, std::int64_t step, const StepResult* result);
  /// A data module that also notes which samples are read. REQUIRES: the recorder outlives it.
  [[nodiscard]] std::shared_ptr<const DataModule> watched(std::shared_ptr<const DataModule> data);
  [[nodiscard]] TrainingRecord take() { return std::move(record_); }

 private:
  class WatchedData;
  RecordedStep& step_of(std::int64_t step);
  void gather(const TrainingState& state);
  void note(std::int64_t step, int dp_rank, const std::vector<MicroBatch>& batches);

  int world_size_;
  std::int64_t last_step_;
  std::mutex mutex_;
  TrainingRecord record_;
};

}  // namespace trellis::trainer
