#pragma once

#include "trainer/models/decoder/decoder.h"

namespace trellis::trainer {

/// Megatron's GPT and what it becomes with Llama's choices: LayerNorm or RMSNorm, biases, learned
/// or rotary positions, every block type and activation, dropouts, tied embeddings. Queries, keys
/// and values of one head lie side by side.
class GPTModel final : public Decoder {
 public:
  GPTModel(const ModelSection& config, const ModuleContext& context, const StageSlot& slot);
  static const ModuleNames& names();
};

}  // namespace trellis::trainer
