#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trainer/modules/moe/routing_ledger.h"

namespace trellis::trainer {

/// Result of a step on a rank; loss and grad_norm are the same on all ranks.
struct StepResult {
  std::int64_t step = 0;  ///< from 1
  double loss = 0;        ///< mean over the global batch, nats per token
  double grad_norm = 0;   ///< before clipping
  /// trainer.track_grad_norm: another norm of the same gradients
  std::optional<double> tracked_grad_norm;
  /// model.skip_nan_grad: the gradients were not finite and changed nothing
  bool skipped = false;
  double lr = 0;
  std::int64_t consumed_samples = 0;  ///< of the training data, this step's included
  double data_wait_s = 0;             ///< host time for which this rank waited for its samples
  double backward_s = 0;              ///< host time of this rank's backward passes
  std::optional<double>
      parameter_norm;  ///< after the step, when exp_manager.log_parameter_norm asks for it
  std::optional<double> val_loss;  ///< of the validation that follows this step
  std::int64_t validation_batches = 0;
  double validation_s = 0;                ///< host time of all of them
  RoutedTokens routed_tokens;             ///< of rank 0, when there is a ledger
  std::map<std::string, double> metrics;  ///< preference_tags(); the same on all ranks
  /// by tag, of rank 0; empty without data. Early stopping monitors one of them.
  std::map<std::string, double> scalars;
};

}  // namespace trellis::trainer
