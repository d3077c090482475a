#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tests/integration/layout_run.h"
#include "trainer/checkpoint/state/live_state.h"
#include "trainer/checkpoint/training/run_checkpoints.h"

namespace trellis::checkpoint::testing_support {

using trainer::RunConfig;
using trainer::StepResult;
using trainer::TrainingState;

/// Weights and optimizer states by their layout-independent keys.
using Canonical = std::map<std::string, at::Tensor>;

/// Collects what every rank's tensors are of the whole ones.
class Collector {
 public:
  void add(const TrainingState& state) {
    const LiveState live = live_state(state.parameters, state.optimizer, state.parallel);
    const std::scoped_lock lock(mutex_);
    for (const auto* list : {&live.model, &live.optimizer}) {
      for (const LiveTensor& tensor : *list) {
        for (const ShardedPart& part : tensor.parts) add(tensor, part);
      }
    }
  }
  [[nodiscard]] const Canonical& whole() const { return whole_; }

 private:
  static at::Tensor box(at::Tensor tensor, const Shape& offset, const Shape& shape) {
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      tensor = tensor.narrow(static_cast<std::int64_t>(axis), offset[axis], shape[axis]);
    return tensor;
  }
  void add(const LiveTensor& tensor, const ShardedPart& part) {
    if (!is_main_replica(part.tensor.replica_id)) return;
    at::Tensor& whole = whole_[part.tensor.key];
    if (!whole.defined()) whole = at::zeros(part.tensor.global_shape, tensor.values.options());
    box(whole, part.tensor.global_offset, part.tensor.local_shape)
        .copy_(box(tensor.values, part.local.offset, part.local.shape));
  }

  std::mutex mutex_;
  Canonical whole_;
};

/// Saves as the run asks for it and watches each step.
class Watched final : public trainer::TrainingCheckpoints {
 public:
  explicit Watched(RunCheckpoints& checkpoints) : checkpoints_(checkpoints) {}
  std::int64_t restore(const TrainingState& state) override {
    const std::int64_t step = checkpoints_.restore(state);
    collect(state, step);
    return step;
  }
  [[nodiscard]] std::int64_t consumed_samples(std::int64_t step) const override {
    return checkpoints_.consumed_samples(step);
  }
  void after_step(const TrainingState& state, const StepResult& result) override {
    collect(state, result.step);
    checkpoints_.after_step(state, result);
  }
  void at_end(const TrainingState& state, std::int64_t step) override {
    checkpoints_.at_end(state, step);
  }
  /// After each step, and before the first one.
  [[nodiscard]] const Canonical& after(std::int64_t step) const { return steps_.at(step).whole(); }

 private:
  void collect(const TrainingState& state, std::int64_t step) {
    Collector* collector = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      collector = &steps_[step];
    }
    const at::NoGradGuard no_grad;
    collector->add(state);
  }
  RunCheckpoints& checkpoints_;
  std::mutex mutex_;
  std::map<std::int64_t, Collector> steps_;
};

struct TrainingRun {
  std::map<std::int64_t, double> losses;  ///< by step
  std::map<std::int64_t, Canonical> states;
};

/// Trains as `config` says, with checkpoints in `folder`. `prepared`: sees them before.
inline TrainingRun train(const RunConfig& config, const std::string& folder,
                         const std::function<void(RunCheckpoints&)>& prepared = {}) {
  RunCheckpoints checkpoints(config, folder, find_resume(config, folder));
  if (prepared) prepared(checkpoints);
  Watched watched(checkpoints);
  TrainingRun run;
  std::vector<std::int64_t> steps;
  runtime::WorldOptions world;
  world.world_size = config.world_size();
  const auto data = std::make_shared<trainer::testing_support::RandomTokens>(config);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    trainer::Trainer trainer(config, rank, data, {nullptr, &watched});
    trainer.fit([&](const StepResult& step) { run.losses[step.step] = step.loss; });
  });
  for (const auto& [step, loss] : run.losses) run.states[step] = watched.after(step);
  return run;
}

}  // namespace trellis::checkpoint::testing_support
