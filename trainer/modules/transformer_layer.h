#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/modules/mlp.h"
#include "trainer/modules/qkv.h"
#include "trainer/modules/rotary_embedding.h"
#include "trainer/parallel_layers/layer_norm.h"
#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer {

struct TransformerLayerShape {
  AttentionShape attention;
  std::int64_t ffn_hidden_size = 0;
  double layernorm_epsilon = 1e-5;
  double init_std = 0.02;
  double output_init_std = 0.02;  ///< of the two weights that write to the residual stream
  bool decay_norm_weights = false;
};

class SelfAttention {
 public:
  SelfAttention(const ModuleContext& context, const std::string& path, const TransformerLayerShape& shape);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const RotaryEmbedding& rotary) const;

 private:
  GQAQKVColumnParallelLinear qkv_;
  RowParallelLinear o_proj_;
  LayerScope scope_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)). Activations are [s, b, h], or [s/TP, b, h] with sequence parallelism.
class TransformerLayer {
 public:
  TransformerLayer(const ModuleContext& context, const std::string& path, const TransformerLayerShape& shape);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const RotaryEmbedding& rotary) const;

 private:
  RMSNorm input_layernorm_;
  SelfAttention self_attn_;
  RMSNorm post_attention_layernorm_;
  LlamaMLP mlp_;
  LayerScope scope_;
};

}  // namespace trellis::trainer
