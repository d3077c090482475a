#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// y = x / sqrt(mean(x²) + eps) · weight along the last dimension; statistics and product in fp32 (fp64 for fp64 input), y in x's type.
at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps);

/// Sequence-parallel aware: each TP rank normalises its part of the sequence, so the weight's gradient must be summed over TP.
class RMSNorm {
 public:
  /// `decay_weight`: whether weight decay applies (model.do_layer_norm_weight_decay).
  RMSNorm(const ModuleContext& context, const std::string& path, std::int64_t hidden_size, double eps, bool decay_weight);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const {
    const Scope scope = scope_.enter();
    return scope_.leave(rms_norm(input, weight_, eps_));
  }

 private:
  at::Tensor weight_;
  double eps_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
