#pragma once

#include "trainer/models/decoder/decoder.h"

namespace trellis::trainer {

/// Hugging Face's Llama (2, 3, 3.1) and, with a sliding window, Mistral: RMSNorm, rotary positions,
/// grouped-query attention, SwiGLU, untied head, no biases. Names are those of the model hub; gate
/// and up lie in one weight.
class LlamaForCausalLM final : public Decoder {
 public:
  LlamaForCausalLM(const ModelSection& config, const ModuleContext& context, const StageSlot& slot);
  static const ModuleNames& names();
};

}  // namespace trellis::trainer
