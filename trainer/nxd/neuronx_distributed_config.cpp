#include "trainer/nxd/neuronx_distributed_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace trellis::trainer {
namespace {

/// Notes a problem unless `holds`.
void expect(Problems& problems, bool holds, const std::string& where, const std::string& text) {
  if (!holds) problems.add(where, text);
}

void expect_at_least_one(Problems& problems, const std::string& where, int value) {
  expect(problems, value >= 1, where, "expected 1 or more, got " + std::to_string(value));
}

/// Sets what was not given, and says so.
template <class T>
void fill(std::optional<T>& value, T preset, const char* name, const std::string& text) {
  if (value) return;
  value = preset;
  log_warning(std::string("neuronx_distributed_config: ") + name + " is not given: " + text);
}

void fill_defaults(NxDConfig& config) {
  OptimizerConfig& optimizer = config.optimizer_config;
  fill(optimizer.zero_one_enabled, false, "optimizer_config.zero_one_enabled", "off");
  fill(optimizer.grad_clipping, true, "optimizer_config.grad_clipping", "on");
  if (*optimizer.grad_clipping)
    fill(optimizer.max_grad_norm, 1.0, "optimizer_config.max_grad_norm", "1.0");
  MixedPrecisionConfig& precision = config.mixed_precision_config;
  if (!precision.use_master_weights) precision.use_master_weights = optimizer.zero_one_enabled;
  if (!precision.use_fp32_grad_acc) precision.use_fp32_grad_acc = optimizer.zero_one_enabled;
  if (!precision.use_master_weights_in_ckpt) precision.use_master_weights_in_ckpt = false;
  ModelInitConfig& init = config.model_init_config;
  if (!init.sequential_move_factor) init.sequential_move_factor = config.sequential_move_factor;
  if (!init.meta_device_init) init.meta_device_init = false;
  if (config.lora_config && !config.lora_config->enable_lora) config.lora_config.reset();
}

void check_sizes(const NxDConfig& config, Problems& problems) {
  expect_at_least_one(problems, "tensor_parallel_size", config.tensor_parallel_size);
  expect_at_least_one(problems, "pipeline_parallel_size", config.pipeline_parallel_size);
  expect_at_least_one(problems, "expert_parallel_size", config.expert_parallel_size);
  expect_at_least_one(problems, "context_parallel_size", config.context_parallel_size);
  expect_at_least_one(problems, "kv_size_multiplier", config.kv_size_multiplier);
  expect(problems, !config.sequence_parallel || config.tensor_parallel_size > 1,
         "sequence_parallel",
         "expected tensor_parallel_size 2 or more, got " +
             std::to_string(config.tensor_parallel_size));
}

void check_pipeline(const NxDConfig& config, Problems& problems) {
  const PipelineConfig pipeline = config.pipeline_config.value_or(PipelineConfig{});
  expect_at_least_one(problems, "pipeline_config.num_microbatches", pipeline.num_microbatches);
  expect_at_least_one(problems, "pipeline_config.virtual_pipeline_size",
                      pipeline.virtual_pipeline_size);
  expect(problems, !pipeline.return_mb_loss || !pipeline.broadcast_and_average_loss,
         "pipeline_config",
         "return_mb_loss and broadcast_and_average_loss exclude each other: expected at most one "
         "of them");
  static const std::vector<std::string> kInputs{"input_ids", "labels", "loss_mask", "position_ids",
                                                "attention_mask"};
  for (const std::string& name : pipeline.input_names) {
    expect(problems, std::find(kInputs.begin(), kInputs.end(), name) != kInputs.end(),
           "pipeline_config.input_names",
           "expected input_ids, labels, loss_mask, position_ids or attention_mask, got \"" + name +
               "\"");
  }
  const auto& spec = pipeline.output_loss_value_spec;
  const auto losses = std::count(spec.begin(), spec.end(), true);
  expect(problems, spec.empty() || losses == 1, "pipeline_config.output_loss_value_spec",
         "expected exactly one output to be the loss, got " + std::to_string(losses));
  if (config.pipeline_parallel_size * pipeline.virtual_pipeline_size <= 1) return;
  if (!config.pipeline_config)
    return problems.add("pipeline_config",
                        "a model of several pipeline stages needs one, got none");
  expect(problems, pipeline.auto_partition == pipeline.pipeline_cuts.empty(), "pipeline_config",
         std::string("expected exactly one of auto_partition and pipeline_cuts, got ") +
             (pipeline.auto_partition ? "both" : "neither"));
}

void check_init_and_precision(const NxDConfig& config, Problems& problems) {
  const int factor = *config.model_init_config.sequential_move_factor;
  expect(problems, factor >= 1 && factor <= 32, "sequential_move_factor",
         "expected 1 … 32, got " + std::to_string(factor));
  expect(problems,
         !*config.model_init_config.meta_device_init ||
             config.model_init_config.param_init_fn != nullptr,
         "model_init_config.meta_device_init",
         "weights on the meta device have no values: expected a param_init_fn");
  const MixedPrecisionConfig& precision = config.mixed_precision_config;
  const auto needs_zero1 = [&](bool value, const char* name) {
    expect(problems, !value || *config.optimizer_config.zero_one_enabled,
           std::string("mixed_precision_config.") + name,
           "works on ZeRO-1's shards: expected optimizer_config.zero_one_enabled, got it off");
  };
  needs_zero1(*precision.use_master_weights, "use_master_weights");
  needs_zero1(*precision.use_fp32_grad_acc, "use_fp32_grad_acc");
  needs_zero1(*precision.use_master_weights_in_ckpt, "use_master_weights_in_ckpt");
  const OptimizerConfig& optimizer = config.optimizer_config;
  expect(problems, !*optimizer.grad_clipping || *optimizer.max_grad_norm > 0,
         "optimizer_config.max_grad_norm", "expected more than 0");
}

}  // namespace

NxDConfig neuronx_distributed_config(NxDConfig arguments) {
  fill_defaults(arguments);
  Problems problems;
  check_sizes(arguments, problems);
  check_pipeline(arguments, problems);
  check_init_and_precision(arguments, problems);
  if (arguments.lora_config) check_lora_config(*arguments.lora_config, problems);
  problems.throw_if_any();
  return arguments;
}

}  // namespace trellis::trainer
