#include "trainer/models/factory.h"

#include <map>

#include "base/error.h"
#include "trainer/config/lora_targets.h"
#include "trainer/models/bert/modeling_bert.h"
#include "trainer/models/llama/modeling_llama.h"
#include "trainer/models/megatron_gpt/gpt_model.h"
#include "trainer/models/vit/modeling_vit.h"
#include "trainer/parallel_layers/lora.h"

namespace trellis::trainer {
namespace {

/// Mixtral's names are Llama's; a Megatron mixture with learned positions has GPT's.
bool is_llama_mixture(const ModelSection& config) {
  return config.architecture == "mixtral" && config.position_embedding == PositionEmbedding::kRope;
}

std::unique_ptr<PipelineStage> build(const ModelSection& config, const ModuleContext& context,
                                     const StageSlot& slot) {
  if (config.architecture == "llama" || is_llama_mixture(config))
    return std::make_unique<LlamaForCausalLM>(config, context, slot);
  if (config.architecture == "gpt" || config.architecture == "mixtral")
    return std::make_unique<GPTModel>(config, context, slot);
  if (config.architecture == "bert")
    return std::make_unique<BertForPreTraining>(config, context, slot);
  if (config.architecture == "vit")
    return std::make_unique<ViTForImageClassification>(config, context, slot);
  throw ConfigError("model: architecture " + config.architecture +
                    " is not built by this version; expected llama, gpt, mixtral, bert or vit");
}

const ModuleNames& names_of(const ModelSection& config) {
  const std::string& architecture = config.architecture;
  if (architecture == "gpt" || (architecture == "mixtral" && !is_llama_mixture(config)))
    return GPTModel::names();
  if (architecture == "bert") return BertForPreTraining::names();
  return architecture == "vit" ? ViTForImageClassification::names() : LlamaForCausalLM::names();
}

/// Which weights a fine-tuning with adapters changes.
class Trained {
 public:
  explicit Trained(const ModelSection& config) : lora_(*config.lora) {
    for (NamedModule& module : modules_of(config)) aliases_[module.path] = module.alias;
  }
  bool operator()(const Parameter& parameter) const {
    const auto found = aliases_.find(parameter.name.substr(0, parameter.name.rfind('.')));
    return is_trained(lora_, parameter, found == aliases_.end() ? "" : found->second);
  }

 private:
  const LoraSection& lora_;
  std::map<std::string, std::string> aliases_;
};

}  // namespace

std::unique_ptr<PipelineStage> make_pipeline_stage(const ModelSection& config,
                                                   const ModuleContext& context,
                                                   const StageSlot& slot) {
  auto stage = build(config, context, slot);
  if (config.lora) {
    const Trained trained(config);
    for (Parameter& parameter : *context.parameters)
      parameter.tensor.set_requires_grad(trained(parameter));
  }
  return stage;
}

std::vector<std::string> layer_names(const ModelSection& config) {
  const ModuleNames& names = names_of(config);
  std::vector<std::string> layers;
  for (int i = 0; i < config.num_layers; ++i)
    layers.push_back(names.layers + ("." + std::to_string(i)));
  return layers;
}

}  // namespace trellis::trainer
