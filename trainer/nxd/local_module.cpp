#include "trainer/nxd/local_module.h"

#include <memory>
#include <utility>

namespace trellis::trainer {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

ModulePtr child_of(torch::nn::Module& module, const std::string& name) {
  for (const auto& child : module.named_children()) {
    if (child.key() == name) return child.value();
  }
  return nullptr;
}

/// The module around the last part of a dotted path, and that part. Makes the modules that are
/// missing on the way.
std::pair<torch::nn::Module*, std::string> place_of(torch::nn::Module& root,
                                                    const std::string& path) {
  torch::nn::Module* module = &root;
  std::size_t first = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', first)) {
    const std::string name = path.substr(first, dot - first);
    ModulePtr child = child_of(*module, name);
    if (!child) child = module->register_module(name, std::make_shared<torch::nn::Module>());
    module = child.get();
    first = dot + 1;
  }
  return {module, path.substr(first)};
}

}  // namespace

LocalModule::LocalModule(const SequentialStage& stage, const ParameterList& parameters)
    : torch::nn::Module("LocalModule"), stage_(stage) {
  for (const SequentialStage::Layer& layer : stage.layers()) {
    const auto [parent, name] = place_of(*this, layer.name);
    parent->register_module(name, layer.built.module);
    for (const Parameter& parameter : parameters) {
      if (!parameter.name.starts_with(layer.name + ".")) continue;
      const auto [owner, leaf] = place_of(*this, parameter.name);
      if (!owner->named_parameters(/*recurse=*/false).contains(leaf))
        owner->register_parameter(leaf, parameter.tensor, parameter.tensor.requires_grad());
    }
  }
}

}  // namespace trellis::trainer
