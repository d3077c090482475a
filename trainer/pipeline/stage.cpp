#include "trainer/pipeline/stage.h"

#include "base/error.h"

namespace trellis::trainer {

at::Tensor PipelineStage::decode(const at::Tensor&, const DecodeTokens&, KvCache&) const {
  throw ConfigError(
      "generation: the model is no decoder: expected Llama, Mistral, Mixtral or a Megatron GPT "
      "(model_source hf or megatron)");
}

}  // namespace trellis::trainer
