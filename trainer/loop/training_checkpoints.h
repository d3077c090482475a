#pragma once

#include <cstdint>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

class EarlyStopping;
class LrScheduler;
class NeuronZero1Optimizer;
struct RunConfig;
struct StepResult;

/// The whole state of a rank's training, for saving and restoring it. Random numbers are a function
/// of the seed and of these numbers: no generator has a state.
struct TrainingState {
  const RunConfig& config;
  runtime::RankContext& rank;
  const ParallelState& parallel;
  ParameterList& parameters;
  NeuronZero1Optimizer& optimizer;
  LrScheduler& scheduler;
  EarlyStopping* early_stopping;  ///< null: none
  bool& stop_requested;           ///< early stopping has said so; of rank 0
  StepPosition& position;
  std::int64_t batches_per_epoch = 0;
  FullySharding* fully_sharded = nullptr;  ///< null: weights are whole. See FullySharding::Whole
};

/// Saves and restores training. All ranks share one and call its members together.
class TrainingCheckpoints {
 public:
  virtual ~TrainingCheckpoints() = default;
  /// Called before the first step. Returns how many steps are done: 0 for a new training.
  virtual std::int64_t restore(const TrainingState& state) = 0;
  /// Training samples that all steps up to `step` have consumed.
  [[nodiscard]] virtual std::int64_t consumed_samples(std::int64_t step) const = 0;
  /// Called after each step, when validation, schedule and early stopping have seen it. `result`:
  /// the scalars are there on rank 0 only.
  virtual void after_step(const TrainingState& state, const StepResult& result) = 0;
  /// Called after the last step, whatever ended the run but an error. `step`: how many are done.
  virtual void at_end(const TrainingState& state, std::int64_t step) = 0;
};

}  // namespace trellis::trainer
