#include "trainer/optimizer/adamw.h"

#include <cmath>

#include <ATen/ops/div.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>

namespace trellis::trainer {

AdamWStep::AdamWStep(const AdamWOptions& options, std::int64_t step, double lr, double weight_decay, const at::TensorOptions& like)
    : options_(options) {
  const double t = static_cast<double>(step);
  const double bias_correction1 = 1 - std::pow(options.beta1, t);
  const double bias_correction2 = 1 - std::pow(options.beta2, t);
  const at::Tensor host = at::tensor({1 - lr * weight_decay, 1 / std::sqrt(bias_correction2), -lr / bias_correction1}, like.dtype());
  const at::Tensor numbers = host.to(like.device());
  decay_ = numbers.select(0, 0);
  inverse_sqrt_v_ = numbers.select(0, 1);
  negative_step_ = numbers.select(0, 2);
}

void AdamWStep::apply(at::Tensor& parameter, const at::Tensor& grad, AdamWState& state) const {
  state.exp_avg.mul_(options_.beta1).add_(grad, 1 - options_.beta1);
  state.exp_avg_sq.mul_(options_.beta2).addcmul_(grad, grad, 1 - options_.beta2);
  at::Tensor update = at::sqrt(state.exp_avg_sq).mul_(inverse_sqrt_v_).add_(options_.eps);
  at::div_out(update, state.exp_avg, update);
  parameter.mul_(decay_).addcmul_(update, negative_step_);
}

}  // namespace trellis::trainer
