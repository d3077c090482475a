// CTest sets ATEN_CPU_CAPABILITY=avx2: a process asks once what its processor can do.
#include "trainer/app/prepare/wide_products.h"

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <gtest/gtest.h>

namespace trellis::trainer {
namespace {

using at::Tensor;

class WideProducts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(at::get_cpu_capability(), "AVX2") << "run it by ctest, which sets the environment";
    at::manual_seed(5);
    use_wide_products();
    use_wide_products();
  }
  static Tensor random(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }
  static Tensor wide(const Tensor& tensor) { return tensor.to(at::kFloat); }
  static Tensor narrow(const Tensor& tensor) { return tensor.to(at::kBFloat16); }
};

/// LibTorch's own kernels round some of so many elements to the other neighbour.
TEST_F(WideProducts, AreRoundedOnce) {
  const Tensor a = random({512, 600}), b = random({600, 512}), bias = random({512});
  EXPECT_TRUE(at::equal(at::mm(a, b), narrow(at::mm(wide(a), wide(b)))));
  EXPECT_TRUE(at::equal(at::addmm(bias, a, b, 0.5, 2),
                        narrow(at::addmm(wide(bias), wide(a), wide(b), 0.5, 2))));
  const Tensor c = random({3, 256, 600}), d = random({3, 600, 256}), e = random({3, 256, 256});
  EXPECT_TRUE(at::equal(at::bmm(c, d), narrow(at::bmm(wide(c), wide(d)))));
  EXPECT_TRUE(at::equal(at::baddbmm(e, c, d), narrow(at::baddbmm(wide(e), wide(c), wide(d)))));
}

TEST_F(WideProducts, AttentionHasTheGradientsOfSinglePrecision) {
  const auto run = [](Tensor q, Tensor k, Tensor v, const Tensor& grad) {
    for (Tensor* each : {&q, &k, &v}) each->requires_grad_();
    const Tensor out = at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, true);
    out.backward(grad);
    return std::vector<Tensor>{out.detach(), q.grad(), k.grad(), v.grad()};
  };
  const std::vector<std::int64_t> sizes{2, 3, 40, 16};
  const Tensor q = random(sizes), k = random(sizes), v = random(sizes), grad = random(sizes);
  const auto found = run(q.clone(), k.clone(), v.clone(), grad);
  const auto expected = run(wide(q), wide(k), wide(v), wide(grad));
  EXPECT_TRUE(at::equal(found[0], narrow(expected[0])));
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kBFloat16);
    // The saved output is rounded to 8 bits before the backward pass reads it.
    const double scale = expected[i].abs().max().item<double>();
    EXPECT_LT((wide(found[i]) - expected[i]).abs().max().item<double>(), scale / 128) << i;
  }
}

TEST_F(WideProducts, OtherTypesAreAsBefore) {
  const Tensor a = at::randn({4, 6}, at::kDouble), b = at::randn({6, 3}, at::kDouble);
  EXPECT_TRUE(at::allclose(at::mm(a, b), (a.unsqueeze(2) * b.unsqueeze(0)).sum(1), 1e-12));
  EXPECT_THROW(at::mm(random({4, 6}), at::randn({6, 3})), c10::Error);
}

}  // namespace
}  // namespace trellis::trainer
