#include "trainer/nxd/nxd_optimizer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/optimizer/make_update_rule.h"

namespace trellis::trainer {
namespace {

OptimizerOptions options_of(const NxDConfig& config, const OptimSection& optim) {
  OptimizerOptions options;
  options.rule = make_update_rule(optim);
  options.weight_decay = optim.weight_decay;
  if (*config.optimizer_config.grad_clipping)
    options.max_grad_norm = config.optimizer_config.max_grad_norm;
  options.zero1 = *config.optimizer_config.zero_one_enabled;
  const bool half = config.dtype == at::kBFloat16;
  options.grad_dtype =
      half && *config.mixed_precision_config.use_fp32_grad_acc ? at::kFloat : config.dtype;
  options.master_dtype =
      half && *config.mixed_precision_config.use_master_weights ? at::kFloat : config.dtype;
  options.seed = config.seed;
  return options;
}

}  // namespace

NxDOptimizer::NxDOptimizer(const NxDConfig& config, NxDModel& model, const OptimSection& optim)
    : model_(model),
      options_(options_of(config, optim)),
      lr_(optim.lr),
      clips_(*config.optimizer_config.grad_clipping) {
  make_optimizer();
  model.leave_gradients_to_optimizer();
}

/// The one before gives the gradients back first.
void NxDOptimizer::make_optimizer() {
  optimizer_.reset();
  optimizer_ =
      std::make_unique<NeuronZero1Optimizer>(model_.parameter_list(), model_.parallel(), options_);
}

void NxDOptimizer::check_group(const ParamGroup& group) const {
  if (optimizer_->steps() > 0) {
    throw ConfigError(
        "add_param_group: the optimizer has states of its groups: expected no step yet, got " +
        std::to_string(optimizer_->steps()));
  }
  Problems problems;
  const auto has = [&group](const std::string& name) {
    return std::ranges::find(group.names, name) != group.names.end();
  };
  for (const std::string& name : group.names) {
    const bool is_elsewhere = model_.knows_layer_of(name) && !model_.has_layer_of(name);
    const auto found = std::ranges::find(model_.parameter_list(), name, &Parameter::name);
    if (found == model_.parameter_list().end()) {
      if (!is_elsewhere) problems.add("add_param_group", name + " is no parameter of the model");
    } else if (found->group) {
      problems.add("add_param_group", name + " is in an added group already");
    }
  }
  for (const auto& copies : model_.tied_names()) {
    const auto count = std::ranges::count_if(copies, has);
    if (count == 0 || count == static_cast<std::ptrdiff_t>(copies.size())) continue;
    std::string text;
    for (const std::string& copy : copies) text += (text.empty() ? "" : ", ") + copy;
    problems.add("add_param_group",
                 "one weight under several names must be in one group: expected all of " + text);
  }
  problems.throw_if_any();
}

void NxDOptimizer::add_param_group(const ParamGroup& group) {
  check_group(group);
  for (Parameter& parameter : model_.parameter_list()) {
    if (std::ranges::find(group.names, parameter.name) != group.names.end())
      parameter.group = group.numbers;
  }
  make_optimizer();
}

void NxDOptimizer::step() {
  model_.tied_weights().sum_gradients(
      [this](const Parameter& parameter) { return optimizer_->main_grad(parameter); });
  optimizer_->reduce_gradients();
  grad_norm_ = optimizer_->step(lr_);
  model_.position()->step = optimizer_->steps();
}

std::optional<double> NxDOptimizer::grad_norm() const {
  if (!clips_ || !grad_norm_.defined()) return std::nullopt;
  return grad_norm_.item<double>();
}

NxDOptimizer::StateDict NxDOptimizer::state_dict() const {
  StateDict state{{"step", at::full({}, optimizer_->steps(), at::kLong)}};
  int next = 0;
  optimizer_->for_each_state(
      [&](const at::Tensor& tensor) { state["state." + std::to_string(next++)] = tensor; });
  return state;
}

void NxDOptimizer::load_state_dict(const StateDict& state) {
  const at::NoGradGuard no_grad;
  const StateDict own = state_dict();
  Problems problems;
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    if (found == state.end()) {
      problems.add(name, "expected in the optimizer's state, missing");
    } else if (found->second.sizes() != tensor.sizes()) {
      problems.add(name,
                   c10::str("expected sizes ", tensor.sizes(), ", got ", found->second.sizes()));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name))
      problems.add(name, "unexpected: this optimizer has no state of this name");
  }
  problems.throw_if_any();
  for (const auto& [name, tensor] : own) at::Tensor(tensor).copy_(state.at(name));
  continue_after(state.at("step").item<std::int64_t>());
}

void NxDOptimizer::continue_after(std::int64_t steps) {
  optimizer_->continue_after(steps);
  model_.position()->step = steps;
}

std::unique_ptr<NxDOptimizer> initialize_parallel_optimizer(const NxDConfig& config,
                                                            NxDModel& model,
                                                            const OptimSection& optim) {
  return std::make_unique<NxDOptimizer>(config, model, optim);
}

}  // namespace trellis::trainer
