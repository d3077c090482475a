// Rotary positions and attention: properties that hold whatever the implementation.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/modules/core_attention.h"
#include "trainer/modules/qkv.h"
#include "trainer/modules/rotary_embedding.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kSequence = 9, kHeadDim = 6;

ModuleContext double_context(ParallelState& parallel, ParameterList& parameters) {
  ModuleContext context;
  context.parallel = &parallel;
  context.parameters = &parameters;
  context.dtype = at::kDouble;
  return context;
}

RotaryEmbedding rotary(double theta) {
  ParallelState parallel;
  ParameterList parameters;
  return RotaryEmbedding(double_context(parallel, parameters), kHeadDim, kSequence, theta);
}

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) { return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble); }

TEST(RotaryEmbedding, EachPairTurnsByItsAngle) {
  const double theta = 100;
  const at::Tensor x = random({kSequence, 1, 1, kHeadDim}, 1);
  const at::Tensor y = rotary(theta).forward(x);
  const auto in = x.accessor<double, 4>(), out = y.accessor<double, 4>();
  for (int p = 0; p < kSequence; ++p) {
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = p * std::pow(theta, -2.0 * i / kHeadDim), a = in[p][0][0][i], b = in[p][0][0][i + kHeadDim / 2];
      EXPECT_NEAR(out[p][0][0][i], a * std::cos(angle) - b * std::sin(angle), 1e-14);
      EXPECT_NEAR(out[p][0][0][i + kHeadDim / 2], b * std::cos(angle) + a * std::sin(angle), 1e-14);
    }
  }
}

TEST(RotaryEmbedding, ScoresDependOnTheDistanceOnly) {
  const at::Tensor q = random({1, 1, 1, kHeadDim}, 1).expand({kSequence, 1, 1, kHeadDim});
  const at::Tensor k = random({1, 1, 1, kHeadDim}, 2).expand({kSequence, 1, 1, kHeadDim});
  const RotaryEmbedding embedding = rotary(50);
  const at::Tensor scores = embedding.forward(q).view({kSequence, kHeadDim}).matmul(embedding.forward(k).view({kSequence, kHeadDim}).t());
  for (int i = 1; i < kSequence; ++i) EXPECT_NEAR(scores[i][i - 1].item<double>(), scores[1][0].item<double>(), 1e-13);
}

TEST(RotaryEmbedding, TheGradientIsTheTransposedRotation) {
  const RotaryEmbedding embedding = rotary(50);
  at::Tensor x = random({kSequence, 2, 3, kHeadDim}, 1).requires_grad_();
  const at::Tensor grad = random({kSequence, 2, 3, kHeadDim}, 2), direction = random({kSequence, 2, 3, kHeadDim}, 3);
  embedding.forward(x).backward(grad);
  // The map is linear: <grad, R·d> = <Rᵀ·grad, d>.
  const at::NoGradGuard no_grad;
  EXPECT_NEAR((grad * embedding.forward(direction)).sum().item<double>(), (x.grad() * direction).sum().item<double>(), 1e-12);
}

TEST(CoreAttention, GroupedQueriesEqualExplicitlyCopiedHeads) {
  const at::Tensor q = random({kSequence, 2, 6, kHeadDim}, 1), k = random({kSequence, 2, 2, kHeadDim}, 2), v = random({kSequence, 2, 2, kHeadDim}, 3);
  const at::Tensor got = core_attention(q, k, v);
  EXPECT_TRUE(at::allclose(got, core_attention(q, k.repeat_interleave(3, 2), v.repeat_interleave(3, 2)), 1e-14, 1e-14));
  EXPECT_EQ(got.sizes(), (std::vector<std::int64_t>{kSequence, 2, 6 * kHeadDim}));
}

TEST(CoreAttention, APositionSeesThePastOnly) {
  const at::Tensor q = random({kSequence, 1, 2, kHeadDim}, 1), k = random({kSequence, 1, 2, kHeadDim}, 2), v = random({kSequence, 1, 2, kHeadDim}, 3);
  const at::Tensor before = core_attention(q, k, v);
  k.select(0, 5).fill_(3);
  v.select(0, 5).fill_(3);
  const at::Tensor after = core_attention(q, k, v);
  EXPECT_TRUE(at::allclose(after.narrow(0, 0, 5), before.narrow(0, 0, 5), 0, 0));
  for (int p = 5; p < kSequence; ++p) EXPECT_FALSE(at::allclose(after[p], before[p])) << p;
  EXPECT_TRUE(at::allclose(before[0].view({2, kHeadDim}), v[0].view({2, kHeadDim}))) << "the first position sees itself";
}

TEST(GQAQKV, TooFewKeyValueHeadsAreNamed) {
  ParallelState four(ParallelGroup{{}, 0, 4}, {}, {});
  ParameterList parameters;
  EXPECT_THROW(GQAQKVColumnParallelLinear(double_context(four, parameters), "model.layers.0.self_attn", {32, 8, 2}, 0.02), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
