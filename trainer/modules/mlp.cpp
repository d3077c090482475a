#include "trainer/modules/mlp.h"

#include "trainer/modules/activations.h"

namespace trellis::trainer {
namespace {

int parts(const ModelSection& config) { return is_gated(config.activation) ? 2 : 1; }

std::vector<ColumnParallelLinear> make_inputs(const ModuleContext& context, const std::string& path,
                                              const ModelSection& config,
                                              const ModuleNames& names) {
  const auto make = [&](const char* name, int fused) {
    return ColumnParallelLinear(context, path + "." + name, config.hidden_size,
                                {{"", fused * std::int64_t{config.ffn_hidden_size}}},
                                {.init = config.init_method_std,
                                 .bias = config.has_bias,
                                 .gather_output = false,
                                 .stride = fused});
  };
  if (config.fuse_gate_up || !is_gated(config.activation))
    return {make(names.mlp_input, parts(config))};
  return {make(names.mlp_gate, 1), make(names.mlp_up, 1)};
}

}  // namespace

ParallelMLP::ParallelMLP(const ModuleContext& context, const std::string& path,
                         const ModelSection& config, const ModuleNames& names)
    : activation_(config.activation),
      recompute_(RecomputePlan::of(config)),
      position_(context.position),
      inputs_(make_inputs(context, path, config, names)),
      dropout_(context, path + ".ffn_dropout", config.ffn_dropout),
      tp_(context.tp()),
      output_(
          context, path + "." + names.mlp_output, config.ffn_hidden_size, config.hidden_size,
          {.init = output_init_std(config), .bias = config.has_bias, .input_is_parallel = true}),
      scope_(context.scope(path)) {
  if (config.transformer_block_type == TransformerBlock::kNormformer) {
    norm_.emplace(context, path + ".normalization", config, config.ffn_hidden_size);
  }
  if (!config.lora) return;
  const bool fused = config.fuse_gate_up || !is_gated(config.activation);
  const std::int64_t ffn = config.ffn_hidden_size;
  const std::vector<ColumnParallelLinear::Output> outputs =
      fused ? std::vector<ColumnParallelLinear::Output>{{names.mlp_input, parts(config) * ffn}}
            : std::vector<ColumnParallelLinear::Output>{{names.mlp_gate, ffn}, {names.mlp_up, ffn}};
  input_lora_.emplace(context, *config.lora, path, config.hidden_size, outputs, "gate_up_proj",
                      fused ? parts(config) : 1);
  const std::string output = path + "." + names.mlp_output;
  if (config.lora->targets_module(output, "down_proj"))
    output_lora_.emplace(context, *config.lora, output, ffn, config.hidden_size);
}

at::Tensor ParallelMLP::forward(const at::Tensor& input) const {
  const Scope scope = scope_.enter();
  return scope_.leave(
      maybe_checkpoint(recompute_.mlp, position_, {input},
                       [this](const std::vector<at::Tensor>& inputs) { return run(inputs[0]); }));
}

at::Tensor ParallelMLP::run(const at::Tensor& input) const {
  std::vector<at::Tensor> projected;
  for (const ColumnParallelLinear& layer : inputs_) projected.push_back(layer.forward(input)[0]);
  if (input_lora_) input_lora_->add_to(projected, input);
  const at::Tensor activated =
      maybe_checkpoint(recompute_.activation, position_, projected,
                       [this](const std::vector<at::Tensor>& inputs) { return between(inputs); });
  const at::Tensor output = output_.forward(activated);
  return output_lora_ ? output_lora_->add_to(output, activated) : output;
}

at::Tensor ParallelMLP::between(const std::vector<at::Tensor>& inputs) const {
  at::Tensor hidden = inputs.size() == 2 ? activate(activation_, inputs[0], inputs[1])
                                         : activate(activation_, inputs[0]);
  if (norm_) hidden = norm_->forward(hidden);
  return dropout_.forward(hidden, ShardPlace::part(2, hidden.size(2), tp_));
}

}  // namespace trellis::trainer
