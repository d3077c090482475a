#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/data/data_module.h"
#include "trainer/modules/module_names.h"
#include "trainer/parallel_layers/dropout.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/lora.h"

namespace trellis::trainer {

/// Word embedding, learned positions when the model has them, dropout: the start of the residual
/// stream, in its type.
class LanguageModelEmbedding {
 public:
  LanguageModelEmbedding(const ModuleContext& context, const ModelSection& config,
                         const ModuleNames& names);
  /// [s, b, h], or [s/TP, b, h] with sequence parallelism.
  [[nodiscard]] at::Tensor forward(const MicroBatch& batch) const;
  /// This rank's rows [v/TP, h] of the word embedding: a tied head reads them.
  [[nodiscard]] const at::Tensor& word_weight() const { return words_.weight(); }

 private:
  [[nodiscard]] at::Tensor positions(const at::Tensor& position_ids) const;

  ParallelEmbedding words_;
  std::optional<EmbeddingLora> lora_;
  at::Tensor
      position_weight_;  ///< [max_position_embeddings, h]; undefined without learned positions
  Dropout dropout_;
  at::ScalarType residual_dtype_;
  SequenceShard sequence_;
  ParallelGroup tp_;
  bool sequence_parallel_;
};

}  // namespace trellis::trainer
