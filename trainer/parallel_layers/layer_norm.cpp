#include "trainer/parallel_layers/layer_norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>

#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// 1 / sqrt(mean(x²) + eps), [.., 1]. The norm is the one reduction that reads a half-precision
/// input and sums in fp32.
at::Tensor inverse_rms(const at::Tensor& input, double eps) {
  const double inverse_size = 1.0 / static_cast<double>(input.size(-1));
  return at::linalg_vector_norm(input, 2, {-1}, /*keepdim=*/true, statistics_dtype(input))
      .square_()
      .mul_(inverse_size)
      .add_(eps)
      .rsqrt_();
}

/// With x̂ = x·r, g = dy: dw = Σ g·x̂ and dx = r·(g·w − x̂·mean(g·w·x̂)).
class RmsNormBackward final : public Derivative {
 public:
  RmsNormBackward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& inverse) {
    save(input);
    save(weight);
    save(inverse);
  }

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor input = saved(0);
    const at::Tensor inverse = saved(2);
    const at::Tensor weight = saved(1).to(inverse.scalar_type());
    const std::int64_t size = input.size(-1);
    const at::Tensor normal = at::mul(input, inverse);
    const at::Tensor product = at::mul(normal, grads[0]);
    const bool frozen = !task_should_compute_output(1);
    const at::Tensor grad_weight = frozen ? at::Tensor() : product.view({-1, size}).sum(0);
    const at::Tensor mean = at::matmul(product, weight).unsqueeze_(-1);
    at::Tensor grad_input = at::mul(weight, grads[0]);
    grad_input.addcmul_(normal, mean, -1.0 / static_cast<double>(size)).mul_(inverse);
    return {grad_input.to(input.scalar_type()),
            frozen ? grad_weight : grad_weight.to(saved(1).scalar_type())};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  at::Tensor output, inverse;
  {
    BelowAutograd below;
    inverse = inverse_rms(input, eps);
    output = at::mul(input, inverse).mul_(weight).to(input.scalar_type());
  }
  if (needs_derivative({input, weight}))
    attach(c10::make_intrusive<RmsNormBackward>(input, weight, inverse), {input, weight}, {output});
  return output;
}

/// With fp32 weights ATen keeps fp32 statistics for a half-precision input; with half-precision
/// ones it would round them.
at::Tensor layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  const auto exact = [dtype = statistics_dtype(input)](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(dtype) : tensor;
  };
  return at::layer_norm(input, {input.size(-1)}, exact(weight), exact(bias), eps);
}

namespace {

at::Tensor make_norm_parameter(const ModuleContext& context, const std::string& name,
                               std::int64_t size, const WeightInit& init, bool decay) {
  Parameter& parameter = make_parameter(context, {name, {size}, -1, 1, init});
  parameter.sequence_parallel_enabled = context.sequence_parallel;
  parameter.weight_decay = decay;
  return parameter.tensor;
}

}  // namespace

RMSNorm::RMSNorm(const ModuleContext& context, const std::string& path, std::int64_t hidden_size,
                 double eps, bool decay_weight)
    : weight_(make_norm_parameter(context, path + ".weight", hidden_size, WeightInit::ones(),
                                  decay_weight)),
      eps_(eps),
      scope_(context.scope(path)) {}

LayerNorm::LayerNorm(const ModuleContext& context, const std::string& path,
                     std::int64_t hidden_size, double eps, bool decay_weight, LayerNormKind kind,
                     bool bias)
    : weight_(make_norm_parameter(context, path + ".weight", hidden_size,
                                  WeightInit::constant(kind == LayerNormKind::kLayerNorm ? 1 : 0),
                                  decay_weight)),
      bias_(bias ? make_norm_parameter(context, path + ".bias", hidden_size, WeightInit::zeros(),
                                       decay_weight)
                 : at::Tensor()),
      eps_(eps),
      kind_(kind),
      scope_(context.scope(path)) {}

at::Tensor LayerNorm::forward(const at::Tensor& input) const {
  const Scope scope = scope_.enter();
  const at::Tensor weight =
      kind_ == LayerNormKind::kLayerNorm ? weight_ : weight_.to(statistics_dtype(input)).add(1);
  return scope_.leave(layer_norm(input, weight, bias_, eps_));
}

}  // namespace trellis::trainer
