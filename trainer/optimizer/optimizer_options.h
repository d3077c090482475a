#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "trainer/config/run_config.h"
#include "trainer/optimizer/bucket_plan.h"
#include "trainer/optimizer/update_rule.h"

namespace trellis::trainer {

struct OptimizerOptions {
  std::shared_ptr<const UpdateRule> rule;  ///< none: adamw with its defaults
  double weight_decay = 0;
  bool decay_norms_and_biases = false;  ///< do_layer_norm_weight_decay: one group with everything
  std::optional<double> max_grad_norm;  ///< none: no clipping
  bool zero1 =
      true;  ///< shard masters and states over DP; otherwise every DP rank holds and updates all
  at::ScalarType grad_dtype = at::kFloat;  ///< of gradient accumulation, at least the weights' type
  std::optional<at::ScalarType> reduce_dtype;  ///< of the sum over DP; none: as they accumulate
  at::ScalarType master_dtype =
      at::kFloat;  ///< of the updated weights: masters are kept where it exceeds the model's type
  bool stochastic_rounding =
      false;              ///< where values become bf16: weights, and states that are bf16
  std::int64_t seed = 0;  ///< of stochastic rounding
  BucketCaps caps;
  /// Gradients that each parameter gets per step: a bucket's communication then starts as soon as
  /// backward has the last of them. 0: all communications start in reduce_gradients(), as those of
  /// tied weights always do. The results are the same bits.
  int gradients_per_step = 0;
  std::optional<EmaSection> ema;
};

/// Type of weights and activations.
[[nodiscard]] at::ScalarType model_dtype(const PrecisionSection& precision);
/// Type of what a model would compute wider than its activations, softmax of attention and cross
/// entropy: bf16 where XLA_USE_BF16 makes float32 that.
[[nodiscard]] std::optional<at::ScalarType> wide_dtype(const PrecisionSection& precision);
/// Type of sums over TP inside the parallel layers: parallel_layers_reduce_dtype; types fp32 and
/// fp64 have one type for all.
[[nodiscard]] at::ScalarType reduce_dtype(const PrecisionSection& precision);
/// The options of a configuration's optimizer. Throws ConfigError for an optimizer section that
/// breaks a rule.
[[nodiscard]] OptimizerOptions optimizer_options(const RunConfig& config);

}  // namespace trellis::trainer
