#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"
#include "trainer/nxd/nxd_model.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::trainer {

/// An optimizer over a parallel model. A step: gradients are summed over the copies of tied
/// weights, over TP (parameters that see a part of the sequence) and averaged over DP; clipped by
/// the norm of the whole gradient; the update; with ZeRO-1 on shards, which are then gathered.
class NxDOptimizer {
 public:
  /// `optim`: NxD's optimizer class and its defaults, as a record. Takes the gradients over from
  /// the model.
  NxDOptimizer(const NxDConfig& config, NxDModel& model, const OptimSection& optim);

  void step();
  /// Norm of the last step's gradients before clipping; none before the first step and when
  /// grad_clipping is off. Waits for the device.
  [[nodiscard]] std::optional<double> grad_norm() const;
  /// Gradients are moved into accumulation buffers that each step begins again: nothing is left to
  /// clear.
  void zero_grad(bool /*set_to_none*/ = false) {}

  using ParamGroup = NeuronZero1Optimizer::ParameterGroup;
  /// The groups with weight decay, without it, and those that were added.
  [[nodiscard]] std::vector<ParamGroup> param_groups() const { return optimizer_->param_groups(); }
  /// Parameters leave the group that they were in and get their own weight decay and learning
  /// rate. Every rank names all of them, also those of other stages. Throws ConfigError: after
  /// the first step, for a name that is no parameter, that an added group has already, or that is
  /// one copy of a tied weight without the others.
  void add_param_group(const ParamGroup& group);
  [[nodiscard]] double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }  ///< of the next steps, for all groups: what a schedule does
  [[nodiscard]] std::int64_t steps() const { return optimizer_->steps(); }

  /// Masters and states of this rank's shards, in a fixed order, and "step". They share memory with
  /// the optimizer.
  using StateDict = std::map<std::string, at::Tensor>;
  [[nodiscard]] StateDict state_dict() const;
  /// The sharded optimizer itself, for checkpoints.
  [[nodiscard]] const NeuronZero1Optimizer& zero1_optimizer() const { return *optimizer_; }
  /// The next step is number `steps` + 1: states were restored.
  void continue_after(std::int64_t steps);
  /// REQUIRES: a state of the same model, layout and optimizer. Throws ConfigError for other keys
  /// or sizes.
  void load_state_dict(const StateDict& state);

 private:
  void check_group(const ParamGroup& group) const;
  void make_optimizer();

  NxDModel& model_;
  OptimizerOptions options_;
  double lr_;
  bool clips_;
  std::unique_ptr<NeuronZero1Optimizer> optimizer_;
  at::Tensor grad_norm_;
};

/// `optim.lr` is the first learning rate. Without clipping no gradient norm is reported.
[[nodiscard]] std::unique_ptr<NxDOptimizer> initialize_parallel_optimizer(
    const NxDConfig& config, NxDModel& model, const OptimSection& optim);

}  // namespace trellis::trainer
