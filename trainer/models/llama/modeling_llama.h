#pragma once

#include <deque>
#include <optional>

#include "trainer/config/run_config.h"
#include "trainer/modules/transformer_layer.h"
#include "trainer/pipeline/partition.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// One pipeline stage of Llama, as NxDT's Megatron-style Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied head,
/// no biases. The first stage holds the embedding, the last one the final norm, lm_head and the loss. Names are global:
/// "model.layers.3.self_attn.o_proj.weight" on whichever stage.
class LlamaForCausalLM final : public PipelineStage {
 public:
  LlamaForCausalLM(const ModelSection& config, const ModuleContext& context, const LayerRange& layers);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const at::Tensor& labels) const override;

 private:
  [[nodiscard]] at::Tensor loss(const at::Tensor& hidden, const at::Tensor& labels) const;

  ParallelGroup tp_;
  RotaryEmbedding rotary_;
  std::optional<ParallelEmbedding> embed_tokens_;
  std::deque<TransformerLayer> layers_;
  std::optional<RMSNorm> norm_;
  std::optional<ColumnParallelLinear> lm_head_;
  LayerScope lm_head_scope_;
  LayerScope loss_scope_;
};

}  // namespace trellis::trainer
