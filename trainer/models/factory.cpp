#include "trainer/models/factory.h"

#include "base/error.h"
#include "trainer/models/llama/modeling_llama.h"
#include "trainer/models/megatron_gpt/gpt_model.h"

namespace trellis::trainer {

std::unique_ptr<PipelineStage> make_pipeline_stage(const ModelSection& config, const ModuleContext& context, const StageSlot& slot) {
  if (config.architecture == "llama") return std::make_unique<LlamaForCausalLM>(config, context, slot);
  if (config.architecture == "gpt") return std::make_unique<GPTModel>(config, context, slot);
  throw ConfigError("model: architecture " + config.architecture + " is not built by this version; expected llama or gpt");
}

std::vector<std::string> layer_names(const ModelSection& config) {
  const ModuleNames& names = config.architecture == "gpt" ? GPTModel::names() : LlamaForCausalLM::names();
  std::vector<std::string> layers;
  for (int i = 0; i < config.num_layers; ++i) layers.push_back(names.layers + ("." + std::to_string(i)));
  return layers;
}

}  // namespace trellis::trainer
