#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/config/run_config.h"
#include "trainer/optimizer/adamw.h"
#include "trainer/optimizer/parameter_bucket.h"
#include "trainer/parallel_layers/grads.h"

namespace trellis::trainer {

struct OptimizerOptions {
  AdamWOptions adamw;
  double weight_decay = 0;
  std::optional<double> max_grad_norm;        ///< none: no clipping
  bool zero1 = true;                          ///< shard masters and states over DP; otherwise every DP rank holds and updates all
  at::ScalarType grad_dtype = at::kFloat;     ///< of gradient accumulation and reduction
  at::ScalarType master_dtype = at::kFloat;   ///< of the updated copy of the weights and of the optimizer states
};

/// AdamW over data-parallel shards. A step:
///
///   gradients of norm weights ── sum over TP (sequence parallelism)
///   main_grad ─ reduce-scatter, average over DP ─ clip by the global norm ─ AdamW on the master shard ─ all-gather ─ weights
class NeuronZero1Optimizer {
 public:
  NeuronZero1Optimizer(ParameterList& parameters, const ParallelState& parallel, const OptimizerOptions& options);

  /// First part of a step: sums the gradients that backward accumulated over TP and DP.
  void reduce_gradients();
  /// The rest. Returns the gradient norm before clipping, on the device.
  at::Tensor step(double lr);

  /// For memory accounting: what each buffer is.
  void for_each_gradient(const std::function<void(const at::Tensor&)>& visit) const;
  void for_each_state(const std::function<void(const at::Tensor&)>& visit) const;

 private:
  struct Shard {
    std::unique_ptr<ParameterBucket> bucket;
    at::Tensor master;
    AdamWState state;
    at::Tensor grad;  ///< this rank's part of the reduced gradient; set by reduce_gradients
  };
  void add_shard(std::vector<Parameter*> parameters);
  [[nodiscard]] std::vector<GradientPart> gradient_parts() const;
  void update_masters(double lr);
  void gather_parameters();
  [[nodiscard]] ParallelGroup sharding_group() const;

  ParallelState parallel_;
  OptimizerOptions options_;
  std::int64_t steps_ = 0;
  std::vector<Shard> shards_;
};

}  // namespace trellis::trainer
