#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/layer_norm.h"

namespace trellis::trainer::layer_norm_test {
namespace {

using testing_support::close;
using testing_support::random;
using testing_support::Rank;

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt() * weight;
}

struct Sample {
  at::Tensor x, weight, grad;
};
Sample sample() {
  at::Generator generator = at::detail::createCPUGenerator(9);
  return {at::randn({5, 2, 16}, generator, at::kDouble), at::randn({16}, generator, at::kDouble),
          at::randn({5, 2, 16}, generator, at::kDouble)};
}

TEST(RmsNorm, ForwardAndGradientsEqualTheFormula) {
  const Sample s = sample();
  at::Tensor x1 = s.x.clone().requires_grad_(), w1 = s.weight.clone().requires_grad_();
  at::Tensor x2 = s.x.clone().requires_grad_(), w2 = s.weight.clone().requires_grad_();
  const at::Tensor y1 = rms_norm(x1, w1, 1e-3), y2 = formula(x2, w2, 1e-3);
  y1.backward(s.grad);
  y2.backward(s.grad);
  EXPECT_TRUE(at::allclose(y1, y2, 1e-13, 1e-13));
  EXPECT_TRUE(at::allclose(x1.grad(), x2.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(w1.grad(), w2.grad(), 1e-12, 1e-12));
}

TEST(RmsNorm, StatisticsOfHalfPrecisionInputAreFp32) {
  // 4096 equal values: a bfloat16 sum of squares would stop growing at 256.
  const at::Tensor x = at::full({1, 4096}, 1.0, at::kBFloat16);
  const at::Tensor y = rms_norm(x, at::ones({4096}, at::kBFloat16), 1e-6);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(y, at::ones_like(x)));
}

TEST(RmsNorm, TheWeightIsTaggedForTheSumOverTensorParallelRanks) {
  for (const bool sequence_parallel : {false, true}) {
    ParallelState parallel;
    ParameterList parameters;
    ModuleContext context;
    context.parallel = &parallel;
    context.parameters = &parameters;
    context.sequence_parallel = sequence_parallel;
    const RMSNorm norm(context, "model.norm", 8, 1e-5, /*decay_weight=*/false);
    EXPECT_EQ(parameters.at(0).sequence_parallel_enabled, sequence_parallel);
    EXPECT_FALSE(parameters.at(0).weight_decay);
    EXPECT_EQ(parameters.at(0).name, "model.norm.weight");
  }
}

struct Norms {
  Rank rank{ParallelState()};
  LayerNorm plain{rank.context, "a", 16, 1e-3, true};
  LayerNorm centred{rank.context, "b", 16, 1e-3, false, LayerNormKind::kLayerNorm1P};
  void set(const std::string& name, const at::Tensor& value) {
    const at::NoGradGuard no_grad;
    rank.parameter(name).tensor.copy_(value);
  }
};

TEST(LayerNorms, ForwardAndGradientsEqualTheFormula) {
  const Sample s = sample();
  Norms norms;
  norms.set("a.weight", s.weight);
  norms.set("b.weight", s.weight - 1);
  const at::Tensor bias = random({16}, 3);
  for (const char* name : {"a.bias", "b.bias"}) norms.set(name, bias);
  at::Tensor x = s.x.clone().requires_grad_(), w = s.weight.clone().requires_grad_(),
             b = bias.clone().requires_grad_();
  const at::Tensor centred = x - x.mean(-1, true);
  const at::Tensor expected = centred / (centred.pow(2).mean(-1, true) + 1e-3).sqrt() * w + b;
  expected.backward(s.grad);
  for (const auto& [norm, path] :
       {std::pair{&norms.plain, std::string("a")}, std::pair{&norms.centred, std::string("b")}}) {
    at::Tensor local = s.x.clone().requires_grad_();
    const at::Tensor output = norm->forward(local);
    output.backward(s.grad);
    EXPECT_TRUE(close(output, expected)) << path;
    EXPECT_TRUE(close(local.grad(), x.grad())) << path;
    EXPECT_TRUE(close(norms.rank.parameter(path + ".weight").tensor.grad(), w.grad())) << path;
    EXPECT_TRUE(close(norms.rank.parameter(path + ".bias").tensor.grad(), b.grad())) << path;
  }
}

TEST(LayerNorms, TheStartIsTheIdentityScaleAndAttributesAreSet) {
  Norms norms;
  const at::Tensor x = sample().x;
  EXPECT_TRUE(norms.plain.forward(x).equal(norms.centred.forward(x)));
  EXPECT_EQ(norms.rank.parameter("b.weight").tensor.abs().sum().item<double>(), 0)
      << "stored as the distance from one";
  EXPECT_TRUE(norms.rank.parameter("a.bias").weight_decay);
  EXPECT_FALSE(norms.rank.parameter("b.weight").weight_decay);
  Rank parallel(ParallelState(), /*sequence_parallel=*/true);
  const LayerNorm norm(parallel.context, "c", 16, 1e-3, true);
  for (const Parameter& parameter : parallel.parameters)
    EXPECT_TRUE(parameter.sequence_parallel_enabled) << parameter.name;
}

/// The error of a half-precision norm is that of rounding its output once (and, backward, its
/// gradients), not that of rounded statistics.
TEST(HalfPrecisionNorms, KeepFp32StatisticsForwardAndBackward) {
  at::Generator generator = at::detail::createCPUGenerator(4);
  const at::Tensor x = (at::randn({4, 1024}, generator) * 3 + 40)
                           .to(at::kBFloat16);  // a mean that bfloat16 statistics would spoil
  const at::Tensor grad = at::randn({4, 1024}, generator).to(at::kBFloat16);
  const at::Tensor weight = at::ones({1024}, at::kBFloat16),
                   bias = at::zeros({1024}, at::kBFloat16);
  const auto both = [&](at::ScalarType dtype) {
    at::Tensor input = x.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    const at::Tensor output = layer_norm(input, weight.to(dtype), bias.to(dtype), 1e-5);
    output.backward(grad.to(dtype));
    return std::pair{output.detach().to(at::kDouble), input.grad().to(at::kDouble)};
  };
  const auto [half, half_grad] = both(at::kBFloat16);
  const auto [exact, exact_grad] = both(at::kDouble);
  const double rounding = 1.0 / 256;  // half a unit in the last of bfloat16's 8 bits
  EXPECT_TRUE(((half - exact).abs() <= rounding * exact.abs() + 1e-5).all().item<bool>());
  EXPECT_TRUE(
      ((half_grad - exact_grad).abs() <= rounding * exact_grad.abs() + 1e-5).all().item<bool>());
}

}  // namespace
}  // namespace trellis::trainer::layer_norm_test
