#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/lr_scheduler.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/loop/training_checkpoints.h"

namespace trellis::checkpoint {

/// Numbers of user_content.pt in addition to what TrainingState holds.
struct UserNumbers {
  std::int64_t step = 0, consumed_samples = 0;
  double lr = 0;
};

/// A checkpoint of Lightning without its tensors, as NxDT writes it: epoch, global_step, callbacks,
/// lr_schedulers, hyper_parameters (the resolved configuration), pytorch-lightning_version; and
/// consumed_samples, optimizer_steps, rng. There is no state of a generator: what is random follows
/// from the seed, the step and names.
[[nodiscard]] Value user_content_of(const trainer::TrainingState& state,
                                    const UserNumbers& numbers);
/// The same of a training that went on elsewhere, or that has not begun.
[[nodiscard]] Value user_content_of(const trainer::RunConfig& config, const UserNumbers& numbers);
/// A schedule, under the names of torch's, and back.
[[nodiscard]] Value scheduler_value(const trainer::LrScheduler::State& state,
                                    const UserNumbers& numbers);
[[nodiscard]] trainer::LrScheduler::State scheduler_state(const Value& value);
/// Puts it back. the ConfigError contains `where`, about content that no run has written.
void restore_user_content(const Value& content, const trainer::TrainingState& state,
                          const std::string& where);

}  // namespace trellis::checkpoint
