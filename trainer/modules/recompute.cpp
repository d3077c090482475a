#include "trainer/modules/recompute.h"

#include <map>

#include "base/error.h"

namespace trellis::trainer {
namespace {

const std::map<std::string, bool RecomputePlan::*>& modules() {
  static const std::map<std::string, bool RecomputePlan::*> table{
      {"CoreAttention", &RecomputePlan::core_attention},
      {"LlamaMLP", &RecomputePlan::mlp},
      {"LlamaRMSNorm", &RecomputePlan::norm},
      {"ActivationMultiplyMLP", &RecomputePlan::activation},
      {"LlamaDecoderLayer", &RecomputePlan::layer}};
  return table;
}

std::string valid_names() {
  std::string text;
  for (const auto& entry : modules()) text += (text.empty() ? "" : ", ") + entry.first;
  return text;
}

}  // namespace

RecomputePlan RecomputePlan::of(const ModelSection& config) {
  RecomputePlan plan;
  if (config.recompute == Recompute::kSelective) {
    for (const std::string& name : config.recompute_modules) {
      const auto module = modules().find(name);
      if (module == modules().end()) {
        throw ConfigError("model.activations_checkpoint_recompute: no module is called " + name +
                          "; expected some of " + valid_names());
      }
      plan.*module->second = true;
    }
  }
  if (config.recompute == Recompute::kFull) plan.layer = true;
  if (plan.layer) plan = {.layer = true};
  if (plan.mlp) plan.activation = false;
  return plan;
}

}  // namespace trellis::trainer
