#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/modules/mlp.h"

namespace trellis::trainer {
namespace {

TEST(Swiglu, ForwardAndGradientEqualTheFormula) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  const at::Tensor value = at::randn({4, 2, 10}, generator, at::kDouble), grad = at::randn({4, 2, 5}, generator, at::kDouble);
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

}  // namespace
}  // namespace trellis::trainer
