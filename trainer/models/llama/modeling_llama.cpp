#include "trainer/models/llama/modeling_llama.h"

#include <cmath>
#include <string>

#include "trainer/parallel_layers/loss_functions.h"

namespace trellis::trainer {
namespace {

TransformerLayerShape layer_shape(const ModelSection& config) {
  TransformerLayerShape shape;
  shape.attention = {config.hidden_size, config.num_attention_heads, config.num_kv_heads};
  shape.ffn_hidden_size = config.ffn_hidden_size;
  shape.layernorm_epsilon = config.layernorm_epsilon;
  shape.init_std = config.init_method_std;
  // Each layer adds to the residual stream twice: the scale keeps its variance independent of the depth.
  shape.output_init_std = config.init_method_std / std::sqrt(2.0 * config.num_layers);
  shape.decay_norm_weights = config.do_layer_norm_weight_decay;
  return shape;
}

}  // namespace

LlamaForCausalLM::LlamaForCausalLM(const ModelSection& config, const ModuleContext& context, const LayerRange& layers)
    : tp_(context.tp()),
      rotary_(context, config.hidden_size / config.num_attention_heads, config.encoder_seq_length, config.rope_theta),
      lm_head_scope_(context.scope("lm_head")),
      loss_scope_(context.scope("loss")) {
  if (context.parallel->is_pipeline_first_stage()) {
    embed_tokens_.emplace(context, "model.embed_tokens", config.vocab_size, config.hidden_size, config.init_method_std);
  }
  const TransformerLayerShape shape = layer_shape(config);
  for (int layer = layers.first; layer < layers.end; ++layer) {
    layers_.emplace_back(context, "model.layers." + std::to_string(layer), shape);
  }
  if (context.parallel->is_pipeline_last_stage()) {
    norm_.emplace(context, "model.norm", config.hidden_size, config.layernorm_epsilon, config.do_layer_norm_weight_decay);
    lm_head_.emplace(context, "lm_head", config.hidden_size, std::vector<ColumnParallelLinear::Output>{{"", config.vocab_size}},
                     config.init_method_std);
  }
}

at::Tensor LlamaForCausalLM::forward(const at::Tensor& input, const at::Tensor& labels) const {
  at::Tensor hidden = embed_tokens_ ? embed_tokens_->forward(input) : input;
  for (const TransformerLayer& layer : layers_) hidden = layer.forward(hidden, rotary_);
  return lm_head_ ? loss(norm_->forward(hidden), labels) : hidden;
}

at::Tensor LlamaForCausalLM::loss(const at::Tensor& hidden, const at::Tensor& labels) const {
  at::Tensor logits;
  {
    const Scope scope = lm_head_scope_.enter();
    logits = lm_head_scope_.leave(lm_head_->forward(hidden)[0]);
  }
  const Scope scope = loss_scope_.enter();
  return loss_scope_.leave(parallel_cross_entropy(logits, labels.t(), tp_).mean());
}

}  // namespace trellis::trainer
