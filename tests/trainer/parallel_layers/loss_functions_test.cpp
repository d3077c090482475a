// parallel_cross_entropy against at::cross_entropy_loss, un-sharded and sharded over 2 and 4 ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/world.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kVocab = 24;

struct Sample {
  at::Tensor logits, target, weight;  ///< weight: gradient of each token's loss
};

/// Large logits: exp() of them overflows unless the maximum is taken off first.
Sample sample() {
  at::Generator generator = at::detail::createCPUGenerator(5);
  return {at::randn({6, 2, kVocab}, generator, at::kDouble) * 300, at::randint(0, kVocab, {6, 2}, generator, at::kLong),
          at::rand({6, 2}, generator, at::kDouble)};
}

class ParallelCrossEntropy : public testing::TestWithParam<int> {};

TEST_P(ParallelCrossEntropy, LossAndGradientEqualTheDenseOnes) {
  const int ranks = GetParam();
  const Sample s = sample();
  at::Tensor dense = s.logits.clone().requires_grad_();
  const at::Tensor expected = at::cross_entropy_loss(dense.flatten(0, 1), s.target.flatten(), {}, at::Reduction::None).view_as(s.target);
  expected.backward(s.weight);
  runtime::WorldOptions world;
  world.world_size = ranks;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, ranks, 1);
    const auto chunk = [&](const at::Tensor& full) { return full.chunk(ranks, -1)[static_cast<std::size_t>(rank.rank())]; };
    at::Tensor logits = chunk(s.logits).clone().requires_grad_();
    const at::Tensor loss = parallel_cross_entropy(logits, s.target, state.get_tensor_model_parallel_group());
    loss.backward(s.weight);
    EXPECT_TRUE(at::allclose(loss, expected.detach(), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(logits.grad(), chunk(dense.grad()), 1e-13, 1e-13));
    EXPECT_TRUE(logits.detach().equal(chunk(s.logits))) << "the caller's logits must not change";
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelCrossEntropy, testing::Values(1, 2, 4));

TEST(ParallelCrossEntropyTypes, HalfPrecisionLogitsAreComputedInFp32) {
  const Sample s = sample();
  at::Tensor logits = (s.logits / 100).to(at::kBFloat16).requires_grad_();
  const at::Tensor loss = parallel_cross_entropy(logits, s.target, ParallelGroup{});
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const at::Tensor exact = at::cross_entropy_loss(logits.detach().to(at::kDouble).flatten(0, 1), s.target.flatten(), {}, at::Reduction::None);
  EXPECT_TRUE(at::allclose(loss.detach().flatten().to(at::kDouble), exact, 1e-5, 1e-5));
  loss.sum().backward();
  EXPECT_EQ(logits.grad().scalar_type(), at::kBFloat16);
}

TEST(ParallelCrossEntropyTypes, BackwardTwiceIsRefused) {
  const Sample s = sample();
  at::Tensor logits = s.logits.clone().requires_grad_();
  const at::Tensor loss = parallel_cross_entropy(logits, s.target, ParallelGroup{}).sum();
  loss.backward();
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace trellis::trainer
