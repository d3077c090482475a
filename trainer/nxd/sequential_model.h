#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "trainer/data/data_module.h"
#include "trainer/nxd/lora_config.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// A layer that lives on this rank: an ordinary module, and how to call it.
struct BuiltLayer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& input, const MicroBatch& batch)> forward;
};

/// A layer that may live on this rank: built only where it does.
struct LayerSpec {
  std::string name;        ///< its parameters are "<name>.<name in the module>"
  std::string class_name;  ///< of the module, without namespace
  std::function<BuiltLayer(const ModuleContext& context, const std::string& name)> build;
};

/// The outputs of a loss function; output_loss_value_spec says which one is the loss.
using LossFunction =
    std::function<std::vector<at::Tensor>(const at::Tensor& output, const MicroBatch& batch)>;

/// The class's name without namespaces.
[[nodiscard]] std::string class_name_of(const std::type_info& type);

/// A user's model as a list of modules, each of which reads the output of the one before; the first
/// one reads input_ids. Any torch::nn::Module serves, with parallel layers as members or without.
/// Its constructor may begin with (context, name), which parallel layers need; its forward takes a
/// tensor, or a tensor and the micro-batch.
class SequentialModel {
 public:
  template <class Module, class... Arguments>
  SequentialModel& add(std::string name, Arguments... arguments) {
    layers_.push_back({std::move(name), class_name_of(typeid(Module)),
                       [arguments...](const ModuleContext& context, const std::string& path) {
                         return built<Module>(make<Module>(context, path, arguments...));
                       }});
    return *this;
  }
  /// `function(output, batch)` → the micro-batch's mean loss, or a vector of outputs with the loss
  /// among them.
  template <class Function>
  SequentialModel& loss(Function function) {
    loss_ = [function](const at::Tensor& output,
                       const MicroBatch& batch) -> std::vector<at::Tensor> {
      if constexpr (std::is_convertible_v<decltype(function(output, batch)), at::Tensor>) {
        return {function(output, batch)};
      } else {
        return function(output, batch);
      }
    };
    return *this;
  }
  /// Parameters, by name, that are one weight; the first one gives the values. They may lie on
  /// different stages.
  SequentialModel& tie(std::vector<std::string> parameters) {
    tied_.push_back(std::move(parameters));
    return *this;
  }

  /// Its parallel layers get adapters: see LoRAModel.
  SequentialModel& adapters(LoraConfig config) {
    lora_ = std::move(config);
    return *this;
  }

  [[nodiscard]] const std::vector<LayerSpec>& layers() const { return layers_; }
  [[nodiscard]] const std::optional<LoraConfig>& lora() const { return lora_; }
  [[nodiscard]] const LossFunction& loss_function() const { return loss_; }
  [[nodiscard]] const std::vector<std::vector<std::string>>& tied() const { return tied_; }

 private:
  template <class Module, class... Arguments>
  static std::shared_ptr<Module> make(const ModuleContext& context, const std::string& path,
                                      const Arguments&... arguments) {
    if constexpr (std::is_constructible_v<Module, const ModuleContext&, const std::string&,
                                          const Arguments&...>) {
      return std::make_shared<Module>(context, path, arguments...);
    } else {
      return std::make_shared<Module>(arguments...);
    }
  }
  template <class Module>
  static BuiltLayer built(std::shared_ptr<Module> module) {
    Module& layer = *module;
    return {
        std::move(module),
        [&layer](const at::Tensor& input, [[maybe_unused]] const MicroBatch& batch) -> at::Tensor {
          if constexpr (requires { layer.forward(input, batch); }) {
            return layer.forward(input, batch);
          } else {
            return layer.forward(input);
          }
        }};
  }

  std::vector<LayerSpec> layers_;
  LossFunction loss_;
  std::vector<std::vector<std::string>> tied_;
  std::optional<LoraConfig> lora_;
};

/// NxD's wrapper: the model with adapters at the layers that `config` targets, of which alone the
/// weights are trained. The same as NxDConfig::lora_config, for one model.
class LoRAModel : public SequentialModel {
 public:
  LoRAModel(SequentialModel module, LoraConfig config) : SequentialModel(std::move(module)) {
    adapters(std::move(config));
  }
};

}  // namespace trellis::trainer
