#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/parallel_layers/layer_norm.h"

namespace trellis::trainer {
namespace {

at::Tensor formula(const at::Tensor& x, const at::Tensor& weight, double eps) { return x / (x.pow(2).mean(-1, true) + eps).sqrt() * weight; }

struct Sample {
  at::Tensor x, weight, grad;
};
Sample sample() {
  at::Generator generator = at::detail::createCPUGenerator(9);
  return {at::randn({5, 2, 16}, generator, at::kDouble), at::randn({16}, generator, at::kDouble), at::randn({5, 2, 16}, generator, at::kDouble)};
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

}  // namespace
}  // namespace trellis::trainer
