#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/modules/activations.h"

namespace trellis::trainer::activations_test {
namespace {

TEST(Swiglu, ForwardAndGradientEqualTheFormula) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor value = at::randn({4, 2, 10}, generator, at::kDouble),
                   grad = at::randn({4, 2, 5}, generator, at::kDouble);
  at::Tensor x1 = value.clone().requires_grad_(), x2 = value.clone().requires_grad_();
  const auto parts = x2.chunk(2, -1);
  const at::Tensor expected = parts[0] * parts[0].sigmoid() * parts[1];
  const at::Tensor got = swiglu(x1);
  got.backward(grad);
  expected.backward(grad);
  EXPECT_TRUE(at::allclose(got, expected, 1e-14, 1e-14));
  EXPECT_TRUE(at::allclose(x1.grad(), x2.grad(), 1e-13, 1e-13));
}

TEST(Swiglu, AnInputChangedBeforeBackwardIsNoticed) {
  at::Tensor x = at::ones({2, 1, 4}, at::kDouble).requires_grad_();
  at::Tensor fused = x * 2;
  const at::Tensor y = swiglu(fused);
  fused.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

/// By elementary functions, with the gradient by central differences.
TEST(Activations, EachEqualsItsFormulaAndItsGradientTheSlope) {
  const auto formula = [](Activation activation, const at::Tensor& x) {
    const at::Tensor gate = x.chunk(2, -1)[0], up = x.chunk(2, -1)[1];
    const auto gelu = [](const at::Tensor& t) {
      return t * 0.5 * (1 + at::erf(t / std::sqrt(2.0)));
    };
    switch (activation) {
      case Activation::kGelu: return gelu(x);
      case Activation::kOpenAiGelu:
        return 0.5 * x * (1 + at::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
      case Activation::kGeglu: return gelu(gate) * up;
      case Activation::kReglu: return gate.clamp_min(0) * up;
      case Activation::kSwiglu: return gate * gate.sigmoid() * up;
    }
    return at::Tensor();
  };
  at::Generator generator = at::detail::createCPUGenerator(2);
  for (const Activation activation :
       {Activation::kGelu, Activation::kOpenAiGelu, Activation::kGeglu, Activation::kReglu,
        Activation::kSwiglu}) {
    const at::Tensor value = at::randn({3, 2, 8}, generator, at::kDouble),
                     direction = at::randn({3, 2, 8}, generator, at::kDouble);
    at::Tensor x = value.clone().requires_grad_();
    const at::Tensor y = activate(activation, x);
    EXPECT_TRUE(at::allclose(y, formula(activation, value), 1e-13, 1e-13))
        << static_cast<int>(activation);
    EXPECT_EQ(y.size(-1), is_gated(activation) ? 4 : 8);
    if (is_gated(activation)) {
      EXPECT_TRUE(at::allclose(
          y, activate(activation, value.chunk(2, -1)[0], value.chunk(2, -1)[1]), 1e-13, 1e-13));
    }
    y.sum().backward();
    const double h = 1e-6;
    const at::Tensor slope = (formula(activation, value + h * direction).sum() -
                              formula(activation, value - h * direction).sum()) /
                             (2 * h);
    EXPECT_NEAR((x.grad() * direction).sum().item<double>(), slope.item<double>(), 1e-7)
        << static_cast<int>(activation);
  }
}

}  // namespace
}  // namespace trellis::trainer::activations_test
