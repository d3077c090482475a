#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/optimizer/optimizer_options.h"
#include "trainer/optimizer/parameter_bucket.h"
#include "trainer/optimizer/stochastic_rounding.h"
#include "trainer/parallel_layers/grads.h"

namespace trellis::trainer {

/// Any update rule over data-parallel shards. A step:
///
///   gradients of norm weights ── sum over TP (sequence parallelism)
///   main_grad ─ reduce-scatter, average over DP ─ clip by the global norm ─ rule on the shard ─
///     all-gather ─ weights
///
/// Fully sharded weights (Parameter::shard): gradients are reduce-scattered and added up in each
/// micro-batch, unit by unit during backward, and the updated rows stay where they are. Where there
/// are copies of the weights, each is updated with the sum over all: it starts when the last
/// micro-batch's gradients of a unit are added.
///
/// Without ZeRO-1 an all-reduce and a whole update take the place of scatter and gather. fp32
/// masters are kept where the weights are half precision; otherwise the weights themselves are
/// updated and cost no second copy.
class NeuronZero1Optimizer {
 public:
  /// Throws ConfigError when masters or wider gradients are asked for without ZeRO-1.
  NeuronZero1Optimizer(ParameterList& parameters, const ParallelState& parallel,
                       const OptimizerOptions& options);
  /// The parameters that the rule decays, those that it does not, and those of added groups,
  /// by name.
  struct ParameterGroup {
    OptimizerGroup numbers;
    std::vector<std::string> names;
  };
  /// The same with groups that have separate numbers, in which every rank names all parameters,
  /// also those of other stages; those that no group names have the optimizer's. Throws ConfigError
  /// for a parameter in two groups, too.
  NeuronZero1Optimizer(const std::vector<ParameterGroup>& groups, ParameterList& parameters,
                       const ParallelState& parallel, const OptimizerOptions& options);
  ~NeuronZero1Optimizer();

  /// First part of a step: sums the gradients that backward accumulated over TP and DP.
  void reduce_gradients();
  /// Without data: counts the gradients of `microbatches` micro-batches as accumulated. REQUIRES:
  /// before the last micro-batch of the step.
  void skip_gradients(int microbatches);
  /// Sets the factor of this step's gradients, by which they are multiplied when they are read: a
  /// number on the device, the same on every rank; undefined: no factor. REQUIRES: after
  /// reduce_gradients().
  void scale_gradients(at::Tensor factor) { gradient_scale_ = std::move(factor); }
  [[nodiscard]] const at::Tensor& gradient_scale() const { return gradient_scale_; }
  /// L2 or other norm of the whole reduced gradient, on the device, the same on every rank.
  /// REQUIRES: between reduce_gradients() and step().
  [[nodiscard]] at::Tensor grad_norm(double norm_type = 2) const;
  /// The rest: clips by `norm`, which grad_norm() gave, and updates.
  void step(double lr, const at::Tensor& norm);
  /// Both; returns the norm before clipping.
  at::Tensor step(double lr);
  /// In place of step(): drops the reduced gradients. Weights, states and the number of steps stay.
  void skip_step();
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// The next step is number `steps` + 1: states were restored.
  void continue_after(std::int64_t steps) { steps_ = steps; }

  /// The gradient that backward accumulated for a parameter, in its shape; before
  /// reduce_gradients() it is this rank's alone.
  [[nodiscard]] at::Tensor main_grad(const Parameter& parameter) const;
  /// Puts the moving average into the weights, or the weights back: for evaluation. REQUIRES:
  /// options.ema.
  void swap_ema_weights();

  /// This rank's rows of each reduced gradient, flat, without padding, not yet multiplied with
  /// gradient_scale(); they share memory with what step() reads. REQUIRES: between
  /// reduce_gradients() and step().
  void for_each_reduced_gradient(
      const std::function<void(const ShardSlot&, const at::Tensor& rows)>& visit) const;

  /// Visits the buffers of gradients, or of states, for memory accounting.
  void for_each_gradient(const std::function<void(const at::Tensor&)>& visit) const;
  void for_each_state(const std::function<void(const at::Tensor&)>& visit) const;
  /// One tensor that a checkpoint keeps of a parameter on this rank.
  struct ParameterState {
    const ShardSlot& slot;
    std::string name;   ///< fp32_param (the master), ema, or the rule's name of it
    at::Tensor values;  ///< shares memory; of elements: flat, with the slot's padding
    StateExtent extent;
  };
  /// Each state of each parameter, in an order that every layout of one rank keeps.
  void for_each_parameter_state(const std::function<void(const ParameterState&)>& visit) const;
  void for_each_slot(const std::function<void(const ShardSlot&)>& visit) const;
  [[nodiscard]] bool is_sharded() const { return options_.zero1; }
  [[nodiscard]] std::vector<ParameterGroup> param_groups() const;

 private:
  struct Shard;
  class Numbers;
  void add_shard(std::vector<Parameter*> parameters);
  void check_dtypes_without_zero1(const Shard& shard) const;
  void start_reduction(Shard& shard);
  void reduce_pass(Shard& shard);
  void finish_passes(int unit_under_way = -1);
  void start_sum_of_copies(Shard& shard);
  /// Makes space for the padded copies of one more communication.
  void end_padded_reductions(const ParameterBucket& next);
  [[nodiscard]] OptimizerGroup group_of(const Shard& shard) const;
  [[nodiscard]] std::vector<GradientPart> norm_parts() const;
  void clip(const at::Tensor& norm) const;
  at::Tensor update(Shard& shard, const StepNumbers& numbers);
  void update_states(Shard& shard, const at::Tensor& values, const StepNumbers& numbers);
  void update_ema(Shard& shard, const at::Tensor& weights) const;
  [[nodiscard]] at::Tensor as_weights(const Shard& shard, const at::Tensor& values) const;
  /// The ranks that hold the same weights, of experts or dense ones: of one copy, where fully
  /// sharded weights have several.
  [[nodiscard]] const ParallelGroup& holders_of(const Parameter& parameter) const;
  [[nodiscard]] ParallelGroup sharding_group_of(const Parameter& parameter) const;
  [[nodiscard]] int data_parallel_size() const { return parallel_.get_zero1_sharding_group().size; }

  ParallelState parallel_;
  OptimizerOptions options_;
  at::TensorOptions gradients_;  ///< their type and device, also where this rank trains nothing
  at::Tensor gradient_scale_;    ///< of this step; travels with the clipping, in one pass
  std::int64_t steps_ = 0;
  bool shows_ema_ = false;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::deque<Shard*> padded_reductions_;  ///< under way, the oldest first
  std::deque<Shard*> passes_;             ///< the same of fully sharded weights
};

/// L2 norm of the whole, un-sharded model: each parameter once, whatever the layout. On the device,
/// the same on every rank.
[[nodiscard]] at::Tensor parameter_norm(const ParameterList& parameters,
                                        const ParallelState& parallel);

}  // namespace trellis::trainer
