#pragma once

#include <deque>
#include <vector>

#include "trainer/config/model_section.h"
#include "trainer/modules/transformer/transformer_layer.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// Hugging Face's BertForPreTraining: tokens, their types and their places in, a transformer with
/// its norms after the sums, and two losses: the masked tokens, predicted at every place by a head
/// that reads the word embedding, and whether the second sentence follows the first, read off the
/// first token. The loss is their sum. The padding token, 0, learns nothing from being looked up.
/// The whole model is one stage.
class BertForPreTraining final : public PipelineStage {
 public:
  BertForPreTraining(const ModelSection& config, const ModuleContext& context,
                     const StageSlot& slot);
  static const ModuleNames& names();
  /// `batch.labels`: −100 where no token is masked.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const MicroBatch& batch) const override;
  [[nodiscard]] at::Tensor logits() const override { return logits_; }

 private:
  [[nodiscard]] at::Tensor embed(const MicroBatch& batch) const;
  [[nodiscard]] at::Tensor masked_token_loss(const at::Tensor& hidden,
                                             const MicroBatch& batch) const;
  [[nodiscard]] at::Tensor next_sentence_loss(const at::Tensor& hidden,
                                              const MicroBatch& batch) const;

  EntropyContext entropy_;
  std::int64_t sequence_length_;
  bool save_logits_;
  ParallelEmbedding words_;
  at::Tensor position_weight_, type_weight_;  ///< [positions, h], [types, h]
  Norm embedding_norm_;
  Dropout embedding_dropout_;
  std::deque<TransformerLayer> layers_;
  ColumnParallelLinear pooler_, transform_;
  Norm transform_norm_;
  at::Tensor decoder_bias_;  ///< [v]
  ColumnParallelLinear next_sentence_;
  LayerScope embedding_scope_, head_scope_, loss_scope_;
  mutable at::Tensor logits_;
};

}  // namespace trellis::trainer
