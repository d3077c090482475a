#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/modules/mlp.h"
#include "trainer/modules/moe/moe_layer.h"
#include "trainer/modules/norm.h"
#include "trainer/modules/self_attention.h"
#include "trainer/parallel_layers/dropout.h"

namespace trellis::trainer {

/// Attention A and MLP M (or a mixture of experts) around the residual stream; N1, N2, N3 are
/// norms, D is dropout:
///
///   pre_ln          y = x + D(A(N1 x))         y + D(M(N2 y))
///   post_ln         y = N1(x + D(A x))         N2(y + D(M y))
///   normformer      y = x + D(N3(A(N1 x)))     y + D(M(N2 y)), with a norm inside M
///   gpt_j           x + D(A(N1 x)) + D(M(N2 x))
///   reordered_norm  y = x + N1(D(A x))         y + N2(D(M y))
///
/// Activations are [s, b, h], or [s/TP, b, h] with sequence parallelism.
class TransformerLayer {
 public:
  /// `layer`: its index in the whole model, from 0.
  TransformerLayer(const ModuleContext& context, const ModelSection& config,
                   const ModuleNames& names, int layer);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const SequenceContext& sequence) const;

 private:
  TransformerLayer(const ModuleContext& context, const std::string& path,
                   const ModelSection& config, const ModuleNames& names, int layer);
  [[nodiscard]] at::Tensor run(const at::Tensor& input, const SequenceContext& sequence) const;
  [[nodiscard]] at::Tensor attention(const at::Tensor& input,
                                     const SequenceContext& sequence) const;
  [[nodiscard]] at::Tensor mlp(const at::Tensor& input, const SequenceContext& sequence) const;

  TransformerBlock block_;
  at::ScalarType dtype_;
  RecomputePlan recompute_;
  std::shared_ptr<StepPosition> position_;
  Norm attention_norm_;
  SelfAttention attention_;
  std::optional<Norm> normformer_norm_;
  Dropout attention_dropout_;
  Norm mlp_norm_;
  std::optional<ParallelMLP> mlp_;  ///< exactly one of the two
  std::optional<MoeLayer> moe_;
  Dropout mlp_dropout_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
