#include "trainer/modules/transformer/transformer_layer.h"

#include <cmath>

#include "trainer/config/lora_targets.h"
#include "trainer/config/parameter_count.h"

namespace trellis::trainer {
namespace {

/// The residual is added into the block's fresh output, when the types allow it: no third tensor of
/// this size lives.
at::Tensor add_residual(at::Tensor output, const at::Tensor& residual) {
  return output.scalar_type() == residual.scalar_type() ? output.add_(residual) : output + residual;
}

}  // namespace

/// Each layer adds to the residual stream twice: the scale keeps its variance independent of the
/// depth.
double output_init_std(const ModelSection& config) {
  return config.use_scaled_init_method ? config.init_method_std / std::sqrt(2.0 * config.num_layers)
                                       : config.init_method_std;
}

TransformerLayer::TransformerLayer(const ModuleContext& context, const ModelSection& config,
                                   const ModuleNames& names, int layer)
    : TransformerLayer(context, names.layers + ("." + std::to_string(layer)), config, names,
                       layer) {}

TransformerLayer::TransformerLayer(const ModuleContext& context, const std::string& path,
                                   const ModelSection& config, const ModuleNames& names, int layer)
    : block_(config.transformer_block_type),
      dtype_(context.dtype),
      recompute_(RecomputePlan::of(config)),
      position_(context.position),
      attention_norm_(context, path + "." + layer_norm_names(block_).attention, config,
                      recompute_.norm),
      attention_(context, path + "." + names.attention, config, names, layer),
      attention_dropout_(context, path + ".attention_output_dropout", config.hidden_dropout),
      mlp_norm_(context, path + "." + layer_norm_names(block_).mlp, config, recompute_.norm),
      mlp_dropout_(context, path + ".mlp_output_dropout", config.hidden_dropout),
      scope_(context.scope(path)) {
  is_moe_layer(config, layer)
      ? static_cast<void>(moe_.emplace(context, path + ".mlp", config, names, layer))
      : static_cast<void>(mlp_.emplace(context, path + ".mlp", config, names));
  if (block_ == TransformerBlock::kNormformer)
    normformer_norm_.emplace(context, path + ".post_attention_normformer_norm", config,
                             recompute_.norm);
}

at::Tensor TransformerLayer::forward(const at::Tensor& input,
                                     const SequenceContext& sequence) const {
  const Scope scope = scope_.enter();
  return maybe_checkpoint(
      recompute_.layer, position_, {input},
      [this, sequence](const std::vector<at::Tensor>& inputs) { return run(inputs[0], sequence); });
}

at::Tensor TransformerLayer::run(const at::Tensor& input, const SequenceContext& sequence) const {
  switch (block_) {
    case TransformerBlock::kPostLn: {
      const at::Tensor attended =
          attention_norm_.forward(add_residual(attention(input.to(dtype_), sequence), input));
      return mlp_norm_.forward(add_residual(mlp(attended, sequence), attended))
          .to(input.scalar_type());
    }
    case TransformerBlock::kGptJ: {
      const at::Tensor attended =
          add_residual(attention(attention_norm_.forward(input), sequence), input);
      return add_residual(mlp(mlp_norm_.forward(input), sequence), attended);
    }
    case TransformerBlock::kReorderedNorm: {
      const at::Tensor attended =
          add_residual(attention_norm_.forward(attention(input.to(dtype_), sequence)), input);
      return add_residual(mlp_norm_.forward(mlp(attended.to(dtype_), sequence)), attended);
    }
    case TransformerBlock::kPreLn:
    case TransformerBlock::kNormformer: break;
  }
  const at::Tensor attended =
      add_residual(attention(attention_norm_.forward(input), sequence), input);
  return add_residual(mlp(mlp_norm_.forward(attended), sequence), attended);
}

at::Tensor TransformerLayer::attention(const at::Tensor& input,
                                       const SequenceContext& sequence) const {
  const at::Tensor output = attention_.forward(input, sequence);
  return attention_dropout_.forward(normformer_norm_ ? normformer_norm_->forward(output) : output);
}

at::Tensor TransformerLayer::mlp(const at::Tensor& input, const SequenceContext& sequence) const {
  return mlp_dropout_.forward(moe_ ? moe_->forward(input, sequence.router) : mlp_->forward(input));
}

}  // namespace trellis::trainer
