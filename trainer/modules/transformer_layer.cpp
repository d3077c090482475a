#include "trainer/modules/transformer_layer.h"

#include "trainer/modules/core_attention.h"

namespace trellis::trainer {

SelfAttention::SelfAttention(const ModuleContext& context, const std::string& path, const TransformerLayerShape& shape)
    : qkv_(context, path, shape.attention, shape.init_std),
      o_proj_(context, path + ".o_proj", shape.attention.hidden_size, shape.attention.hidden_size, shape.output_init_std),
      scope_(context.scope(path)) {}

at::Tensor SelfAttention::forward(const at::Tensor& input, const RotaryEmbedding& rotary) const {
  const Scope scope = scope_.enter();
  const auto [query, key, value] = qkv_.forward(input);
  return scope_.leave(o_proj_.forward(core_attention(rotary.forward(query), rotary.forward(key), value)));
}

TransformerLayer::TransformerLayer(const ModuleContext& context, const std::string& path, const TransformerLayerShape& shape)
    : input_layernorm_(context, path + ".input_layernorm", shape.attention.hidden_size, shape.layernorm_epsilon, shape.decay_norm_weights),
      self_attn_(context, path + ".self_attn", shape),
      post_attention_layernorm_(context, path + ".post_attention_layernorm", shape.attention.hidden_size, shape.layernorm_epsilon,
                                shape.decay_norm_weights),
      mlp_(context, path + ".mlp", shape.attention.hidden_size, shape.ffn_hidden_size, shape.init_std, shape.output_init_std),
      scope_(context.scope(path)) {}

/// The residual is added into the block's fresh output: no third tensor of this size lives.
at::Tensor TransformerLayer::forward(const at::Tensor& input, const RotaryEmbedding& rotary) const {
  const Scope scope = scope_.enter();
  const at::Tensor attended = self_attn_.forward(input_layernorm_.forward(input), rotary).add_(input);
  return mlp_.forward(post_attention_layernorm_.forward(attended)).add_(attended);
}

}  // namespace trellis::trainer
