#include "trainer/nxd/neuron_hooks_callback.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/log.h"
#include "trainer/nxd/lightning.h"  // pair: hooks read the module that calls them

namespace trellis::trainer {
namespace {

std::filesystem::path default_directory() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return std::filesystem::path("hooks_outputs") / (job != nullptr ? job : "local") / "hooks_dumps";
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string rank_info(const ParallelState& parallel) {
  char text[64];
  std::snprintf(text, sizeof text, "dp_rank_%02d_tp_rank_%02d_pp_rank_%02d",
                parallel.get_data_parallel_rank(), parallel.get_tensor_model_parallel_rank(),
                parallel.get_pipeline_model_parallel_rank());
  return text;
}

}  // namespace

NeuronHooksCallback::NeuronHooksCallback(NeuronHooksConfig config) : config_(std::move(config)) {
  Problems problems;
  if (config_.hooks_interval < 1)
    problems.add("hooks_interval",
                 "expected 1 or more, got " + std::to_string(config_.hooks_interval));
  const bool has_master_norms = config_.dump_only_master_rank && config_.dump_only_norms;
  const auto check = [&](bool enabled, bool dumps, const char* key, const char* source) {
    if (enabled && !has_master_norms)
      problems.add(
          key, "these are the norms of rank 0: expected dump_only_master_rank and dump_only_norms");
    if (enabled && !dumps) problems.add(key, std::string("expected ") + source);
  };
  check(config_.enable_tb_logging_master_rank_activation_norms, config_.enable_activation_dumps,
        "enable_tb_logging_master_rank_activation_norms", "enable_activation_dumps");
  check(config_.enable_tb_logging_master_rank_grad_norms, config_.enable_grad_dumps,
        "enable_tb_logging_master_rank_grad_norms", "enable_grad_dumps");
  problems.throw_if_any();
  if (config_.directory.empty()) config_.directory = default_directory();
}

NeuronHooksCallback& NeuronHooksCallback::logger(NeuronTensorBoardLogger& logger) {
  logger_ = &logger;
  return *this;
}

NeuronHooks::NeuronHooks(const NeuronHooksCallback& callback, NeuronLTModule& module)
    : callback_(callback), module_(module) {
  const NeuronHooksConfig& config = callback_.config();
  if (!config.hooks) return;
  NxDModel& model = module_.model();
  for (const std::string& target : config.target_layers) {
    if (std::ranges::find(model.layer_names(), target) == model.layer_names().end()) {
      throw ConfigError("target_layers: \"" + target +
                        "\" is no layer of the model: expected some of " +
                        joined(model.layer_names()));
    }
  }
  const bool is_master = model.parallel().is_global_rank_zero();
  if (config.master_print_model_layers && is_master)
    log_info("layers of the model: " + joined(model.layer_names()));
  if (config.dump_only_master_rank && !is_master) return;
  model.set_layer_hook([this](const std::string& layer, const at::Tensor& input,
                              const at::Tensor& output) { watch(layer, input, output); });
}

NeuronHooks::~NeuronHooks() { module_.model().set_layer_hook({}); }

bool NeuronHooks::is_due() const { return step_ % callback_.config().hooks_interval == 0; }

void NeuronHooks::record(const std::string& layer, const std::string& kind,
                         const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor value = tensor.detach().to(
      at::kCPU, /*non_blocking=*/false, /*copy=*/true);  // the device's graphs stay as they are
  recorded_[{layer, kind}].push_back(
      callback_.config().dump_only_norms ? at::linalg_vector_norm(value.to(at::kDouble)) : value);
}

/// Gradients arrive in backward: each is recorded when autograd has it.
void NeuronHooks::watch(const std::string& layer, const at::Tensor& input,
                        const at::Tensor& output) {
  const NeuronHooksConfig& config = callback_.config();
  if (!is_due() || std::ranges::find(config.target_layers, layer) == config.target_layers.end() ||
      !at::GradMode::is_enabled())
    return;
  if (config.enable_activation_dumps) {
    record(layer, "layer_input", input);
    record(layer, "layer_output", output);
  }
  if (!config.enable_grad_dumps) return;
  const auto on_gradient = [this, layer](const at::Tensor& tensor, const char* kind) {
    if (tensor.requires_grad())
      tensor.register_hook(
          [this, layer, kind](const at::Tensor& grad) { record(layer, kind, grad); });
  };
  on_gradient(input, "grad_input");
  on_gradient(output, "grad_output");
}

void NeuronHooks::end_step(std::int64_t step) {
  for (const auto& [place, tensors] : recorded_) write(place.first, place.second, tensors, step);
  recorded_.clear();
  step_ = step + 1;
}

void NeuronHooks::write(const std::string& layer, const std::string& kind,
                        const std::vector<at::Tensor>& tensors, std::int64_t step) const {
  const NeuronHooksConfig& config = callback_.config();
  const at::NoGradGuard no_grad;
  const at::Tensor all = at::stack(tensors);
  const at::Tensor value = config.dump_only_norms ? at::linalg_vector_norm(all) : all;
  const std::filesystem::path directory =
      config.directory / layer / ("global_step_" + std::to_string(step));
  std::filesystem::create_directories(directory);
  const std::vector<char> bytes = torch::jit::pickle_save(value);
  const std::string name = rank_info(module_.model().parallel()) + "_" + kind +
                           (config.dump_only_norms ? "_norm.pt" : "_raw.pt");
  write_file_atomically(directory / name, {bytes.data(), bytes.size()});
  const bool is_activation = kind.starts_with("layer_");
  const bool logs = is_activation ? config.enable_tb_logging_master_rank_activation_norms
                                  : config.enable_tb_logging_master_rank_grad_norms;
  if (!logs || callback_.logger_ == nullptr) return;
  const std::string tag =
      is_activation ? "activation_" + kind.substr(std::string("layer_").size()) : kind;
  callback_.logger_->scalar(tag + "_norm/" + layer, step, value.item<double>());
}

}  // namespace trellis::trainer
