#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// How many parameters the parts of a model have, whole or on one tensor-parallel rank.
struct ParameterCounts {
  std::int64_t embedding = 0;  ///< vocabulary · hidden
  std::int64_t positions = 0;  ///< learned ones; of encoders everything else in front of the layers
                               ///< but the embedding, too
  std::int64_t dense_layer = 0;             ///< without adapters, as moe_layer
  std::int64_t moe_layer = 0;               ///< 0: the model has none
  std::vector<std::int64_t> adapters = {};  ///< LoRA's, by layer; empty: there are none
  std::int64_t idle_experts =
      0;  ///< of a moe_layer: parameters of the experts that a token does not visit
  std::int64_t final_norm = 0;
  std::int64_t head = 0;        ///< also when it shares the embedding's weight
  std::int64_t token_head = 0;  ///< bert: what each token passes between the last layer and `head`
  std::int64_t sample_head =
      0;  ///< of encoders: what reads one token per sample, and the head's bias

  [[nodiscard]] std::int64_t layer(const ModelSection& model, int index) const;
};

/// `tp`: ranks that share each layer; `kv_copies`: how often each key/value head is held; `ep`:
/// ranks that share the experts. (1, 1, 1) counts the whole model.
[[nodiscard]] ParameterCounts count_parameters(const ModelSection& model, int tp = 1,
                                               int kv_copies = 1, int ep = 1);
/// Distinct parameters: copies and a shared head count once.
[[nodiscard]] std::int64_t count_all(const ModelSection& model);

}  // namespace trellis::trainer
