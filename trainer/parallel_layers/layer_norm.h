#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// y = x / sqrt(mean(x²) + eps) · weight along the last dimension; statistics and product in fp32
/// (fp64 for fp64 input), y in x's type.
at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps);

/// y = (x − mean) / sqrt(variance + eps) · weight + bias along the last dimension; statistics and
/// product in fp32 (fp64 for fp64 input), y in x's type. Undefined weight and bias count as one and
/// zero.
at::Tensor layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

/// Sequence-parallel aware: each TP rank normalises its part of the sequence, so the weight's
/// gradient must be summed over TP.
class RMSNorm {
 public:
  /// `decay_weight`: whether weight decay applies (model.do_layer_norm_weight_decay).
  RMSNorm(const ModuleContext& context, const std::string& path, std::int64_t hidden_size,
          double eps, bool decay_weight);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const {
    const Scope scope = scope_.enter();
    return scope_.leave(rms_norm(input, weight_, eps_));
  }

 private:
  at::Tensor weight_;
  double eps_;
  LayerScope scope_;
};

/// `kLayerNorm1P`: the stored weight is the distance from one and starts at zero, so that weight
/// decay pulls the scale towards one.
enum class LayerNormKind { kLayerNorm, kLayerNorm1P };

/// Sequence-parallel aware as RMSNorm.
class LayerNorm {
 public:
  LayerNorm(const ModuleContext& context, const std::string& path, std::int64_t hidden_size,
            double eps, bool decay_weight, LayerNormKind kind = LayerNormKind::kLayerNorm,
            bool bias = true);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  at::Tensor weight_, bias_;
  double eps_;
  LayerNormKind kind_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
