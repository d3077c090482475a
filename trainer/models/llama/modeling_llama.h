#pragma once

#include "trainer/models/decoder/decoder.h"

namespace trellis::trainer {

/// Hugging Face's Llama (2, 3, 3.1) and the decoders of config/families: RMSNorm, rotary positions,
/// grouped-query attention, SwiGLU; windows, biases of queries, keys and values, and norms where
/// the family has them. Names are those of the model hub; gate and up lie in one weight.
class LlamaForCausalLM final : public Decoder {
 public:
  LlamaForCausalLM(const ModelSection& config, const ModuleContext& context, const StageSlot& slot);
  static const ModuleNames& names();
};

}  // namespace trellis::trainer
