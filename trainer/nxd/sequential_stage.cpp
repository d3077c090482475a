#include "trainer/nxd/sequential_stage.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Type.h>

#include "base/error.h"
#include "base/log.h"
#include "trainer/parallel_layers/checkpointing.h"
#include "trainer/parallel_layers/lora.h"

namespace trellis::trainer {
namespace {

/// LibTorch's default generator for one scope, seeded by (seed, name), then as it was. Ranks are
/// threads that share it: they take turns.
class DefaultGenerator {
 public:
  DefaultGenerator(std::int64_t seed, const std::string& name)
      : turn_(turn()), generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(stream_seed(seed, name));
  }
  DefaultGenerator(const DefaultGenerator&) = delete;
  DefaultGenerator& operator=(const DefaultGenerator&) = delete;
  ~DefaultGenerator() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(before_);
  }

 private:
  static std::mutex& turn() {
    static std::mutex mutex;
    return mutex;
  }
  std::lock_guard<std::mutex> turn_;
  at::Generator generator_;
  at::Tensor before_;
};

bool is_transformer_layer(const LayerSpec& layer, const std::string& cls) {
  return cls.empty() || layer.class_name == cls;
}

std::string classes_of(const SequentialModel& model) {
  std::vector<std::string> classes;
  for (const LayerSpec& layer : model.layers()) {
    if (std::find(classes.begin(), classes.end(), layer.class_name) == classes.end())
      classes.push_back(layer.class_name);
  }
  std::string text;
  for (const std::string& name : classes) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The parameters that are not a parallel layer's. A replicated parameter between parallel layers
/// sees its rank's part of the sequence only.
void adopt_parameters(const BuiltLayer& layer, const std::string& name,
                      const ModuleContext& context) {
  for (const auto& item : layer.module->named_parameters()) {
    if (!item.value().requires_grad()) {
      throw ConfigError(
          name + "." + item.key() +
          ": a parameter that is not trained has no gradient to reduce: register it as a buffer");
    }
    Parameter parameter;
    parameter.name = name + "." + item.key();
    const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
    if (is_adapted(context, module)) {
      throw ConfigError("lora_config.target_modules: " + module +
                        ": a module of LibTorch takes no adapter: expected a parallel layer, such "
                        "as ColumnParallelLinear, in its place");
    }
    parameter.tensor = item.value();
    parameter.sequence_parallel_enabled = context.sequence_parallel;
    parameter.weight_decay = item.key().find("bias") == std::string::npos &&
                             item.key().find("norm") == std::string::npos;
    context.parameters->push_back(std::move(parameter));
  }
}

/// The layer's parameters, and its buffers when param_init_fn fills them too, by their names within
/// the layer.
std::vector<std::pair<std::string, at::Tensor>> values_to_fill(const BuiltLayer& layer,
                                                               const std::string& name,
                                                               std::size_t first,
                                                               const NxDConfig& config,
                                                               const ModuleContext& context) {
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (std::size_t i = first; i < context.parameters->size(); ++i) {
    const Parameter& parameter = (*context.parameters)[i];
    if (parameter.adapter) continue;  // it begins as LoRA says
    values.emplace_back(parameter.name.substr(name.size() + 1), parameter.tensor);
  }
  if (!config.model_init_config.include_buffers) return values;
  for (const auto& buffer : layer.module->named_buffers())
    values.emplace_back(buffer.key(), buffer.value());
  return values;
}

/// param_init_fn is the source of the layer's values; with meta_device_init what it leaves out is
/// an error. Whole numbers cannot tell.
void initialise(const BuiltLayer& layer, const std::string& name, std::size_t first,
                const NxDConfig& config, const ModuleContext& context) {
  const ModelInitConfig& init = config.model_init_config;
  if (!init.param_init_fn || context.shape_only) return;
  const at::NoGradGuard no_grad;
  for (auto& [key, value] : values_to_fill(layer, name, first, config, context)) {
    const bool can_tell = *init.meta_device_init && value.is_floating_point();
    if (can_tell) value.fill_(std::numeric_limits<double>::quiet_NaN());
    init.param_init_fn(name, key, value);
    if (can_tell && at::isnan(value).any().item<bool>()) {
      throw ConfigError("model_init_config.param_init_fn: layer " + name + ": " + key +
                        " was not initialised");
    }
  }
}

std::vector<TiedWeight> tied_weights_of(const SequentialModel& model,
                                        const std::vector<LayerRange>& ranges, int stage) {
  const auto stage_of = [&](const std::string& parameter) {
    for (std::size_t s = 0; s < ranges.size(); ++s) {
      for (int i = ranges[s].first; i < ranges[s].end; ++i) {
        if (parameter.starts_with(model.layers()[static_cast<std::size_t>(i)].name + "."))
          return static_cast<int>(s);
      }
    }
    throw ConfigError("SequentialModel::tie: " + parameter + " belongs to no layer of the model");
  };
  std::vector<TiedWeight> tied;
  for (const auto& parameters : model.tied()) {
    TiedWeight weight;
    bool is_here = false;
    for (const std::string& parameter : parameters) {
      weight.copies.push_back({stage_of(parameter), parameter});
      is_here |= weight.copies.back().stage == stage;
    }
    if (is_here) tied.push_back(std::move(weight));
  }
  return tied;
}

}  // namespace

std::string class_name_of(const std::type_info& type) {
  const std::string name = c10::demangle(type.name());
  const auto colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

std::vector<LayerRange> partition_model(const SequentialModel& model, const NxDConfig& config) {
  const PipelineConfig pipeline = config.pipeline_config.value_or(PipelineConfig{});
  const int stages = config.pipeline_parallel_size * pipeline.virtual_pipeline_size;
  std::vector<std::string> names;
  std::vector<int> places;
  for (std::size_t i = 0; i < model.layers().size(); ++i) {
    if (!is_transformer_layer(model.layers()[i], pipeline.transformer_layer_cls)) continue;
    names.push_back(model.layers()[i].name);
    places.push_back(static_cast<int>(i));
  }
  if (names.empty()) {
    throw ConfigError("pipeline_config.transformer_layer_cls: no layer of class \"" +
                      pipeline.transformer_layer_cls + "\": expected one of " + classes_of(model));
  }
  std::vector<LayerRange> ranges = pipeline.pipeline_cuts.empty()
                                       ? partition_layers(static_cast<int>(names.size()), stages)
                                       : partition_layers(names, pipeline.pipeline_cuts, stages);
  for (LayerRange& range : ranges) {
    range.first = range.first == 0 ? 0 : places[static_cast<std::size_t>(range.first)];
    const bool is_last = range.end == static_cast<int>(places.size());
    range.end = is_last ? static_cast<int>(model.layers().size())
                        : places[static_cast<std::size_t>(range.end)];
  }
  return ranges;
}

std::vector<bool> recomputed_layers(const SequentialModel& model, const NxDConfig& config) {
  std::vector<bool> recomputed(model.layers().size(), false);
  if (!config.activation_checkpoint_config) return recomputed;
  const ActivationCheckpointConfig& checkpoint = *config.activation_checkpoint_config;
  std::vector<std::string> classes = checkpoint.classes;
  if (checkpoint.full) {
    classes = {config.pipeline_config.value_or(PipelineConfig{}).transformer_layer_cls};
    if (classes.front().empty()) {
      throw ConfigError(
          "activation_checkpoint_config \"full\": expected pipeline_config.transformer_layer_cls "
          "to name a class");
    }
  }
  if (classes.empty())
    throw ConfigError(
        "activation_checkpoint_config: the list of classes is empty: expected some of " +
        classes_of(model));
  for (const std::string& cls : classes) {
    bool found = false;
    for (std::size_t i = 0; i < recomputed.size(); ++i) {
      if (model.layers()[i].class_name != cls) continue;
      recomputed[i] = found = true;
    }
    if (!found)
      log_warning("activation_checkpoint_config: no layer of class \"" + cls +
                  "\"; the model has " + classes_of(model));
  }
  return recomputed;
}

SequentialStage::SequentialStage(const SequentialModel& model, const NxDConfig& config,
                                 const ModuleContext& context, const StageSlot& slot)
    : tied_(tied_weights_of(model, partition_model(model, config), slot.index)),
      position_(context.position) {
  const std::vector<bool> recomputed = recomputed_layers(model, config);
  for (int i = slot.layers.first; i < slot.layers.end; ++i) {
    build(model.layers()[static_cast<std::size_t>(i)], config, context,
          recomputed[static_cast<std::size_t>(i)]);
  }
  if (!slot.is_last()) return;
  if (!model.loss_function())
    throw ConfigError("SequentialModel: the model has no loss: call loss(function)");
  loss_ = model.loss_function();
  const auto spec = config.pipeline_config.value_or(PipelineConfig{}).output_loss_value_spec;
  loss_output_ =
      static_cast<std::size_t>(std::find(spec.begin(), spec.end(), true) - spec.begin()) %
      std::max<std::size_t>(1, spec.size());
}

void SequentialStage::build(const LayerSpec& spec, const NxDConfig& config,
                            const ModuleContext& context, bool recompute) {
  const std::size_t first = context.parameters->size();
  const DefaultGenerator generator(context.seed, spec.name);
  BuiltLayer built = spec.build(context, spec.name);
  built.module->to(context.device, context.dtype);
  adopt_parameters(built, spec.name, context);
  initialise(built, spec.name, first, config, context);
  if (context.lora != nullptr) {
    for (std::size_t i = first; i < context.parameters->size(); ++i) {
      Parameter& parameter = (*context.parameters)[i];
      parameter.tensor.set_requires_grad(is_trained(*context.lora, parameter));
    }
  }
  layers_.push_back({spec.name, std::move(built), context.scope(spec.name), recompute});
}

at::Tensor SequentialStage::output(const at::Tensor& input, const MicroBatch& batch) const {
  at::Tensor value = input.defined() ? input : batch.input_ids;
  for (const Layer& layer : layers_) {
    const Scope scope = layer.scope.enter();
    const at::Tensor before = value;
    if (layer.recompute && at::GradMode::is_enabled()) {
      const auto function = [&layer, batch](const std::vector<at::Tensor>& inputs) {
        return layer.built.forward(inputs[0], batch);
      };
      value = layer.scope.leave(checkpoint(position_, function, {value}));
    } else {
      value = layer.scope.leave(layer.built.forward(value, batch));
    }
    if (hook_) hook_(layer.name, before, value);
  }
  return value;
}

at::Tensor SequentialStage::forward(const at::Tensor& input, const MicroBatch& batch) const {
  const at::Tensor value = output(input, batch);
  if (!loss_) return value;
  const std::vector<at::Tensor> outputs = loss_(value, batch);
  TORCH_CHECK(loss_output_ < outputs.size(), "output_loss_value_spec: output ", loss_output_,
              " is the loss, but the loss function returns ", outputs.size());
  return outputs[loss_output_];
}

}  // namespace trellis::trainer
