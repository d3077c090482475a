#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/checkpointing.h"

namespace trellis::trainer {

/// Which parts of a layer forget their intermediate results and compute them again in backward.
struct RecomputePlan {
  bool layer = false;  ///< LlamaDecoderLayer, or everything (`full`); the parts need nothing of
                       ///< their own then
  bool core_attention = false;  ///< CoreAttention
  bool mlp = false;             ///< LlamaMLP
  bool norm = false;            ///< LlamaRMSNorm, which represents every norm of a layer
  bool activation =
      false;  ///< ActivationMultiplyMLP: what lies between the two linear layers of the MLP

  /// Throws ConfigError with the valid names for a class name that is none of them. NxDT's
  /// LlamaRotaryEmbedding is none: a rotation keeps nothing but tables that are made once, so there
  /// is nothing to recompute.
  static RecomputePlan of(const ModelSection& config);
};

/// function(inputs), recomputed in backward when `recompute`.
template <typename Function>
at::Tensor maybe_checkpoint(bool recompute, const std::shared_ptr<StepPosition>& position,
                            const std::vector<at::Tensor>& inputs, Function&& function) {
  return recompute ? checkpoint(position, std::forward<Function>(function), inputs)
                   : function(inputs);
}

}  // namespace trellis::trainer
