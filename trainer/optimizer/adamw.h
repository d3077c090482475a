#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
};

struct AdamWState {
  at::Tensor exp_avg, exp_avg_sq;
};

/// The numbers of AdamW that change from step to step, as one small tensor on the device: the operations are then the same in every step,
/// and a compiled step can be used again.
class AdamWStep {
 public:
  /// `step` counts from 1. `like`: type and device.
  AdamWStep(const AdamWOptions& options, std::int64_t step, double lr, double weight_decay, const at::TensorOptions& like);
  /// p ← p·(1 − lr·wd) − lr/(1−β1ᵗ) · m / (sqrt(v / (1−β2ᵗ)) + eps), with m and v updated before. Equals torch.optim.AdamW.
  void apply(at::Tensor& parameter, const at::Tensor& grad, AdamWState& state) const;

 private:
  AdamWOptions options_;
  at::Tensor decay_;           ///< 1 − lr·wd
  at::Tensor inverse_sqrt_v_;  ///< 1 / sqrt(1 − β2ᵗ)
  at::Tensor negative_step_;   ///< −lr / (1 − β1ᵗ)
};

}  // namespace trellis::trainer
