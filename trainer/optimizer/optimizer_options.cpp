#include "trainer/optimizer/optimizer_options.h"
#include "trainer/optimizer/make_update_rule.h"

namespace trellis::trainer {

at::ScalarType model_dtype(const PrecisionSection& precision) {
  if (precision.type == "fp64") return at::kDouble;
  if (precision.type == "fp32") return at::kFloat;
  return precision.weights_bf16 ? at::kBFloat16 : at::kFloat;
}

std::optional<at::ScalarType> wide_dtype(const PrecisionSection& precision) {
  return precision.floats_bf16 ? std::optional(at::kBFloat16) : std::nullopt;
}

at::ScalarType reduce_dtype(const PrecisionSection& precision) {
  if (precision.type == "fp32" || precision.type == "fp64") return model_dtype(precision);
  return precision.parallel_layers_reduce_dtype == "fp32" ? at::kFloat : at::kBFloat16;
}

OptimizerOptions optimizer_options(const RunConfig& config) {
  const PrecisionSection& precision = config.precision;
  const at::ScalarType dtype = model_dtype(precision);
  const OptimSection& optim = config.model.optim;
  OptimizerOptions options;
  options.rule = make_update_rule(optim);
  options.weight_decay = optim.weight_decay;
  options.decay_norms_and_biases = config.model.do_layer_norm_weight_decay;
  options.max_grad_norm = config.trainer.gradient_clip_val;
  options.zero1 = config.distributed_strategy.zero1;
  // fp32 and fp64 runs keep their one type; the flags only matter for half-precision weights, and
  // two of them only with ZeRO-1.
  const bool half = dtype == at::kBFloat16, widens = half && options.zero1;
  options.grad_dtype = widens && precision.fp32_grad_acc ? at::kFloat : dtype;
  options.master_dtype = widens && precision.master_weights ? at::kFloat : dtype;
  options.stochastic_rounding = half && precision.stochastic_rounding;
  options.seed = config.seed;
  options.caps = bucket_caps(config);
  options.gradients_per_step = config.num_microbatches();
  options.ema = config.exp_manager.ema;
  return options;
}

}  // namespace trellis::trainer
