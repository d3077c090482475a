#include "trainer/parallel_layers/layer_norm.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>

#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

at::ScalarType statistics_dtype(const at::Tensor& input) { return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// 1 / sqrt(mean(x²) + eps), [.., 1]. The norm is the one reduction that reads a half-precision input and sums in fp32.
at::Tensor inverse_rms(const at::Tensor& input, double eps) {
  const double inverse_size = 1.0 / static_cast<double>(input.size(-1));
  return at::linalg_vector_norm(input, 2, {-1}, /*keepdim=*/true, statistics_dtype(input)).square_().mul_(inverse_size).add_(eps).rsqrt_();
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
    const at::Tensor grad_weight = product.view({-1, size}).sum(0);
    const at::Tensor mean = at::matmul(product, weight).unsqueeze_(-1);
    at::Tensor grad_input = at::mul(weight, grads[0]);
    grad_input.addcmul_(normal, mean, -1.0 / static_cast<double>(size)).mul_(inverse);
    return {grad_input.to(input.scalar_type()), grad_weight.to(saved(1).scalar_type())};
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
  if (needs_derivative({input, weight})) attach(c10::make_intrusive<RmsNormBackward>(input, weight, inverse), {input, weight}, {output});
  return output;
}

RMSNorm::RMSNorm(const ModuleContext& context, const std::string& path, std::int64_t hidden_size, double eps, bool decay_weight)
    : eps_(eps), scope_(context.scope(path)) {
  Parameter& parameter = make_parameter(context, {path + ".weight", {hidden_size}});
  parameter.sequence_parallel_enabled = context.sequence_parallel;
  parameter.weight_decay = decay_weight;
  weight_ = parameter.tensor;
}

}  // namespace trellis::trainer
