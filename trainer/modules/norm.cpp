#include "trainer/modules/norm.h"

#include <source_location>

#include "trainer/modules/module_names.h"
#include "trainer/modules/recompute.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/mappings.h"

namespace trellis::trainer {
namespace {

std::variant<RMSNorm, LayerNorm> make_norm(const ModuleContext& context, const std::string& path,
                                           const ModelSection& config) {
  const double eps = config.layernorm_epsilon;
  const bool decay = config.do_layer_norm_weight_decay;
  if (config.normalization == Normalization::kRmsNorm)
    return RMSNorm(context, path, config.hidden_size, eps, decay);
  const auto kind = config.normalization == Normalization::kLayerNorm1P
                        ? LayerNormKind::kLayerNorm1P
                        : LayerNormKind::kLayerNorm;
  return LayerNorm(context, path, config.hidden_size, eps, decay, kind, config.layernorm_bias);
}

at::Tensor sum_of_copy(const at::Tensor& input, const ParallelGroup& group,
                       std::source_location where) {
  return all_reduce(input.clone(), group, where);
}

}  // namespace

Norm::Norm(const ModuleContext& context, const std::string& path, const ModelSection& config,
           bool recompute)
    : norm_(make_norm(context, path, config)),
      dtype_(context.dtype),
      recompute_(recompute),
      position_(context.position) {}

at::Tensor Norm::forward(const at::Tensor& input) const {
  return maybe_checkpoint(
      recompute_, position_, {input}, [this](const std::vector<at::Tensor>& inputs) {
        return std::visit([&](const auto& norm) { return norm.forward(inputs[0]); }, norm_)
            .to(dtype_);
      });
}

namespace {

/// As for a norm of a part of the sequence, each TP rank has a part of what the weight scales.
ModuleContext summed_over_tp(ModuleContext context) {
  context.sequence_parallel = true;
  return context;
}

ModelSection sized_as_head(ModelSection config) {
  config.hidden_size = static_cast<int>(head_dim(config));
  return config;
}

}  // namespace

HeadNorm::HeadNorm(const ModuleContext& context, const std::string& path,
                   const ModelSection& config)
    : norm_(summed_over_tp(context), path, sized_as_head(config)) {}

ShardedNorm::ShardedNorm(const ModuleContext& context, const std::string& path,
                         const ModelSection& config, std::int64_t size)
    : tp_(context.tp()),
      kind_(config.normalization),
      size_(size),
      eps_(config.layernorm_epsilon),
      scope_(context.scope(path)) {
  const auto make = [&](const char* name, const WeightInit& init) {
    Parameter& parameter = make_parameter(context, {path + name, {size}, 0, 1, init});
    parameter.weight_decay = config.do_layer_norm_weight_decay;
    return parameter.tensor;
  };
  weight_ = make(".weight",
                 kind_ == Normalization::kLayerNorm1P ? WeightInit::zeros() : WeightInit::ones());
  if (kind_ != Normalization::kRmsNorm && config.layernorm_bias)
    bias_ = make(".bias", WeightInit::zeros());
}

/// A statistic enters every rank's part, so its gradient has a share on each: it is summed as the
/// statistic itself was.
at::Tensor ShardedNorm::mean(const at::Tensor& input) const {
  return communicate(input.sum(-1, /*keepdim=*/true), tp_, sum_of_copy, sum_of_copy) /
         static_cast<double>(size_);
}

at::Tensor ShardedNorm::forward(const at::Tensor& input) const {
  const Scope scope = scope_.enter();
  const at::ScalarType dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor value = input.to(dtype);
  if (kind_ != Normalization::kRmsNorm) value = value - mean(value);
  const at::Tensor weight =
      kind_ == Normalization::kLayerNorm1P ? weight_.to(dtype) + 1 : weight_.to(dtype);
  at::Tensor output = value * (mean(value * value) + eps_).rsqrt() * weight;
  if (bias_.defined()) output = output + bias_;
  return scope_.leave(output.to(input.scalar_type()));
}

}  // namespace trellis::trainer
