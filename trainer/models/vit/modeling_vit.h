#pragma once

#include <deque>

#include "trainer/config/model_section.h"
#include "trainer/modules/transformer/transformer_layer.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// Hugging Face's ViTForImageClassification: square patches, each multiplied into a token, after a
/// token for the class; learned places, a transformer with its norms in front, and a head on the
/// class's token. The whole model is one stage.
class ViTForImageClassification final : public PipelineStage {
 public:
  ViTForImageClassification(const ModelSection& config, const ModuleContext& context,
                            const StageSlot& slot);
  static const ModuleNames& names();
  /// `batch`: pixel_values and labels.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input, const MicroBatch& batch) const override;
  /// [1, b, labels]
  [[nodiscard]] at::Tensor logits() const override { return logits_; }

 private:
  [[nodiscard]] at::Tensor embed(const at::Tensor& pixel_values) const;

  EntropyContext entropy_;
  ImageSection image_;
  at::ScalarType dtype_;
  bool save_logits_;
  at::Tensor class_token_, position_weight_;  ///< [1, h], [patches + 1, h]
  ColumnParallelLinear projection_;
  Dropout embedding_dropout_;
  std::deque<TransformerLayer> layers_;
  Norm final_norm_;
  ColumnParallelLinear classifier_;
  LayerScope embedding_scope_, head_scope_, loss_scope_;
  mutable at::Tensor logits_;
};

}  // namespace trellis::trainer
