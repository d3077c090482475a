#include "trainer/verify/resume_defects.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/config/lr_scheduler.h"
#include "trainer/loop/early_stopping.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::trainer {
namespace {

using ParameterState = NeuronZero1Optimizer::ParameterState;

/// Zeroes optimizer states of this rank by their names.
void zero_states(const TrainingState& state, bool (*chooses)(const std::string& name)) {
  const at::NoGradGuard no_grad;
  state.optimizer.for_each_parameter_state([&](const ParameterState& one) {
    if (chooses(one.name)) at::Tensor(one.values).zero_();
  });
}

std::vector<ResumeDefect> make_defects() {
  return {
      {"moments-restart",
       "optimizer states are zeros after a cut",
       "state",
       [](const TrainingState& state) {
         zero_states(state,
                     [](const std::string& name) { return name != "fp32_param" && name != "ema"; });
       },
       {}},
      {"masters-restart",
       "masters are rounded to the weights after a cut",
       "master",
       [](const TrainingState& state) {
         const at::NoGradGuard no_grad;
         state.optimizer.for_each_parameter_state([](const ParameterState& one) {
           if (one.name == "fp32_param") at::Tensor(one.values).copy_(one.values.to(at::kBFloat16));
         });
       },
       {}},
      {"averages-restart",
       "moving averages are zeros after a cut",
       "moving average",
       [](const TrainingState& state) {
         zero_states(state, [](const std::string& name) { return name == "ema"; });
       },
       {}},
      {"weight-bit-flipped",
       "the last bit of one weight of the last rank is another one",
       "weight",
       [](const TrainingState& state) {
         if (state.rank.rank() + 1 != state.rank.world_size()) return;
         const at::NoGradGuard no_grad;
         const at::Tensor bytes =
             state.parameters.back().tensor.detach().view(-1).narrow(0, 0, 1).view(at::kByte);
         bytes.narrow(0, 0, 1).bitwise_xor_(1);
       },
       {}},
      {"step-restarts",
       "the optimizer counts its steps from 0 after a cut",
       "step",
       [](const TrainingState& state) { state.optimizer.continue_after(0); },
       {}},
      {"dropout-restarts",
       "random numbers are those of the first steps again",
       "random state",
       [](const TrainingState& state) { state.position.step = 0; },
       {}},
      {"schedule-restarts",
       "the schedule forgets the epochs that it has seen",
       "schedule",
       [](const TrainingState& state) {
         LrScheduler::State schedule = state.scheduler.state();
         schedule.epochs = 0;
         schedule.best = -1;
         state.scheduler.restore(schedule);
       },
       {}},
      {"callbacks-restart",
       "early stopping forgets the best value",
       "callbacks",
       [](const TrainingState& state) {
         if (state.early_stopping != nullptr) state.early_stopping->restore({});
       },
       {}},
      {"samples-restart",
       "the data begin again at the first sample",
       "samples",
       {},
       [](ResumePoint& point) { point.consumed_samples = 0; }},
      {"sample-skipped",
       "one sample is never read",
       "samples",
       {},
       [](ResumePoint& point) { ++point.consumed_samples; }},
  };
}

}  // namespace

const std::vector<ResumeDefect>& resume_defects() {
  static const std::vector<ResumeDefect> defects = make_defects();
  return defects;
}

const ResumeDefect& find_resume_defect(std::string_view name) {
  std::string all;
  for (const ResumeDefect& defect : resume_defects()) {
    if (defect.name == name) return defect;
    all += "\n  " + defect.name + ": " + defect.description;
  }
  throw ConfigError("--seed-bug " + std::string(name) + ": expected one of" + all);
}

}  // namespace trellis::trainer
