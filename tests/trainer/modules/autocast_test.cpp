#include "trainer/scopes/autocast.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trellis::trainer {
namespace {

TEST(Autocast, MultipliesInBf16AndTakesLossesInFp32) {
  const at::Tensor a = at::ones({2, 2}).requires_grad_(), b = at::ones({2, 2});
  {
    const AutocastScope scope(at::kCPU, true);
    const at::Tensor product = at::mm(a, b);
    EXPECT_EQ(product.scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::mse_loss(product, product).scalar_type(), at::kFloat);
    product.sum().backward();
  }
  EXPECT_EQ(a.grad().scalar_type(), at::kFloat) << "gradients have their weight's type";
  EXPECT_EQ(at::mm(a, b).scalar_type(), at::kFloat) << "only inside";
}

TEST(Autocast, NestsAndCanBeOff) {
  const at::Tensor a = at::ones({2, 2});
  const AutocastScope outer(at::kCPU, true);
  {
    const AutocastScope inner(at::kCPU, false);
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace trellis::trainer
