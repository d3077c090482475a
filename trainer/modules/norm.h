#pragma once

#include <memory>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/layer_norm.h"

namespace trellis::trainer {

/// The model's normalisation of the residual stream: LayerNorm, LayerNorm1P or RMSNorm. [s, b, h]
/// ([s/TP, b, h] with sequence parallelism) → the same in the run's type, whatever the type of the
/// residual stream.
class Norm {
 public:
  /// `recompute`: see RecomputePlan.
  Norm(const ModuleContext& context, const std::string& path, const ModelSection& config,
       bool recompute = false);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  std::variant<RMSNorm, LayerNorm> norm_;
  at::ScalarType dtype_;
  bool recompute_;
  std::shared_ptr<StepPosition> position_;
};

/// The same normalisation of each head of queries or keys, [s, b, heads/TP, d] → the same: one
/// weight of d for all heads (Qwen3, transformers 5.23 modeling_qwen3.py; Megatron-core's
/// q_layernorm and k_layernorm). A TP rank has its own heads, so the weight's gradient is summed
/// over TP.
class HeadNorm {
 public:
  HeadNorm(const ModuleContext& context, const std::string& path, const ModelSection& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& heads) const { return norm_.forward(heads); }

 private:
  Norm norm_;
};

/// The same normalisation of a tensor whose last dimension is sharded over TP: mean and variance
/// are those of the whole dimension. Normformer has one inside its MLP, OLMo 2 across the heads of
/// queries and across those of keys.
class ShardedNorm {
 public:
  /// `size`: un-sharded.
  ShardedNorm(const ModuleContext& context, const std::string& path, const ModelSection& config,
              std::int64_t size);
  /// [s, b, size/TP] → the same; statistics in fp32 (fp64 for fp64 input).
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  [[nodiscard]] at::Tensor mean(const at::Tensor& input) const;
  at::Tensor weight_, bias_;
  ParallelGroup tp_;
  Normalization kind_;
  std::int64_t size_;
  double eps_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
