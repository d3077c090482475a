#pragma once

#include <cstdint>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// When a run ends and when it validates, with Lightning's rules. Steps count from 1; a batch is a
/// global batch, one per step.
class StepCalendar {
 public:
  /// `batches_per_epoch`: of the training data; limit_train_batches shortens it. Throws ConfigError
  /// when val_check_interval counts more batches than an epoch has while check_val_every_n_epoch is
  /// not null.
  StepCalendar(const TrainerSection& trainer, std::int64_t batches_per_epoch);
  /// max_steps, or earlier by max_epochs; without both the largest number.
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }
  /// min_steps, or later by min_epochs: before it the run ends neither by its time nor by early
  /// stopping.
  [[nodiscard]] std::int64_t least_step() const { return least_step_; }
  [[nodiscard]] bool ends_by_epochs() const { return ends_by_epochs_; }
  [[nodiscard]] std::int64_t batches_per_epoch() const { return batches_per_epoch_; }
  /// True if validation follows step `step`.
  [[nodiscard]] bool validates_after(std::int64_t step) const;
  /// True if validation follows any step of the run.
  [[nodiscard]] bool ever_validates() const;

 private:
  std::int64_t batches_per_epoch_;
  std::int64_t last_step_;
  std::int64_t least_step_ = 0;
  bool ends_by_epochs_ = false;
  std::int64_t interval_ = 0;        ///< batches between validations
  std::int64_t every_n_epochs_ = 0;  ///< 0: the interval counts on across epochs
};

}  // namespace trellis::trainer
