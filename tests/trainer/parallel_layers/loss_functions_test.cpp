// parallel_cross_entropy against at::cross_entropy_loss, un-sharded and sharded: label smoothing,
// ignored targets, log-probabilities.
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "trainer/parallel_layers/loss_functions.h"
#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer::loss_functions_test {
namespace {

constexpr std::int64_t kVocab = 24;

struct Sample {
  at::Tensor logits, target, weight;  ///< weight: gradient of each token's loss
};

/// Large logits: exp() of them overflows unless the maximum is taken off first.
Sample sample() {
  at::Generator generator = at::detail::createCPUGenerator(5);
  return {at::randn({6, 2, kVocab}, generator, at::kDouble) * 300,
          at::randint(0, kVocab, {6, 2}, generator, at::kLong),
          at::rand({6, 2}, generator, at::kDouble)};
}

struct Case {
  int ranks;
  double smoothing;
  bool ignored;
};

using PartOf =
    std::function<at::Tensor(const at::Tensor& full)>;  ///< this rank's part of the vocabulary

class ParallelCrossEntropy : public testing::TestWithParam<Case> {
 protected:
  void on_each_rank(
      const Sample& s,
      const std::function<void(at::Tensor logits, const PartOf&, const ParallelGroup&)>& body) {
    const int ranks = GetParam().ranks;
    runtime::WorldOptions world;
    world.world_size = ranks;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      const ParallelState state = ParallelState::initialize_model_parallel(rank, ranks, 1);
      const auto chunk = [&](const at::Tensor& full) {
        return full.chunk(ranks, -1)[static_cast<std::size_t>(rank.rank())];
      };
      body(chunk(s.logits).clone().requires_grad_(), chunk,
           state.get_tensor_model_parallel_group());
    });
  }
};

TEST_P(ParallelCrossEntropy, LossAndGradientEqualTheDenseOnes) {
  Sample s = sample();
  if (GetParam().ignored) s.target.view(-1).narrow(0, 3, 5).fill_(-100);
  const CrossEntropyOptions options{.label_smoothing = GetParam().smoothing};
  at::Tensor dense = s.logits.clone().requires_grad_();
  const at::Tensor expected =
      at::cross_entropy_loss(dense.flatten(0, 1), s.target.flatten(), {}, at::Reduction::None, -100,
                             options.label_smoothing)
          .view_as(s.target);
  expected.backward(s.weight);
  on_each_rank(s, [&](at::Tensor logits, const auto& chunk, const ParallelGroup& tp) {
    const at::Tensor loss = parallel_cross_entropy(logits, s.target, tp, options);
    loss.backward(s.weight);
    EXPECT_TRUE(at::allclose(loss, expected.detach(), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(logits.grad(), chunk(dense.grad()), 1e-13, 1e-13));
    EXPECT_TRUE(logits.detach().equal(chunk(s.logits))) << "the caller's logits must not change";
    if (GetParam().ignored) {
      const at::Tensor ignored = s.target.eq(-100);
      EXPECT_EQ(loss.masked_select(ignored).abs().sum().template item<double>(), 0);
      EXPECT_EQ(logits.grad().index({ignored}).abs().sum().template item<double>(), 0);
    }
  });
}

TEST_P(ParallelCrossEntropy, LogProbabilitiesEqualTheDenseGather) {
  const Sample s = sample();  // as [b = 6, s = 2, v]: one next token each
  at::Tensor dense = s.logits.clone().requires_grad_();
  const at::Tensor expected = dense.narrow(1, 0, 1)
                                  .log_softmax(-1)
                                  .gather(-1, s.target.narrow(1, 1, 1).unsqueeze(-1))
                                  .squeeze(-1);
  const at::Tensor weight = s.weight.narrow(1, 0, 1).contiguous();
  expected.backward(weight);
  on_each_rank(s, [&](at::Tensor logits, const auto& chunk, const ParallelGroup& tp) {
    const at::Tensor logprobs = from_parallel_logits_to_logprobs(logits, s.target, tp);
    EXPECT_EQ(logprobs.sizes(), (std::vector<std::int64_t>{6, 1}));
    logprobs.backward(weight);
    EXPECT_TRUE(at::allclose(logprobs, expected.detach(), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(logits.grad(), chunk(dense.grad()), 1e-13, 1e-13));
    EXPECT_FALSE(
        from_parallel_logits_to_logprobs(logits, s.target, tp, /*inference=*/true).requires_grad());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelCrossEntropy,
                         testing::Values(Case{1, 0, false}, Case{2, 0, false}, Case{4, 0, true},
                                         Case{8, 0, true}, Case{1, 0.1, true}, Case{2, 0.1, false},
                                         Case{4, 0.3, true}),
                         [](const auto& test) {
                           return "TP" + std::to_string(test.param.ranks) +
                                  (test.param.smoothing > 0 ? "_smoothing" : "") +
                                  (test.param.ignored ? "_ignored" : "");
                         });

TEST(LabelSmoothing, MegatronsAlphaIsTheDocumentedRate) {
  // Megatron: the target keeps 1 − α, each of the K − 1 others gets α/(K − 1).
  const Sample s = sample();
  const double alpha = 0.2, k = kVocab;
  const at::Tensor logprobs = s.logits.log_softmax(-1);
  const at::Tensor target = logprobs.gather(-1, s.target.unsqueeze(-1)).squeeze(-1);
  const at::Tensor expected =
      -((1 - alpha) * target + alpha / (k - 1) * (logprobs.sum(-1) - target));
  EXPECT_TRUE(at::allclose(
      parallel_cross_entropy(s.logits, s.target, {}, {.label_smoothing = alpha * k / (k - 1)}),
      expected, 1e-13, 1e-13));
}

TEST(LabelSmoothing, ARateOutsideItsRangeIsNamed) {
  const Sample s = sample();
  EXPECT_THROW(parallel_cross_entropy(s.logits, s.target, {}, {.label_smoothing = 1}), ConfigError);
  EXPECT_THROW(parallel_cross_entropy(s.logits, s.target, {}, {.label_smoothing = -0.1}),
               ConfigError);
}

TEST(ParallelCrossEntropyTypes, HalfPrecisionLogitsAreComputedInFp32) {
  const Sample s = sample();
  at::Tensor logits = (s.logits / 100).to(at::kBFloat16).requires_grad_();
  const at::Tensor loss = parallel_cross_entropy(logits, s.target, ParallelGroup{});
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const at::Tensor exact = at::cross_entropy_loss(logits.detach().to(at::kDouble).flatten(0, 1),
                                                  s.target.flatten(), {}, at::Reduction::None);
  EXPECT_TRUE(at::allclose(loss.detach().flatten().to(at::kDouble), exact, 1e-5, 1e-5));
  loss.sum().backward();
  EXPECT_EQ(logits.grad().scalar_type(), at::kBFloat16);
}

/// Entries of bf16 have eight bits: what is summed over many of them, and what belongs to a token,
/// stays in fp32.
TEST(ParallelCrossEntropyTypes, EntriesInBf16LeaveNumbersPerTokenInFp32) {
  const Sample s = sample();
  at::Tensor narrow = (s.logits / 100).to(at::kBFloat16).requires_grad_(),
             wide = narrow.detach().clone().requires_grad_();
  const at::Tensor loss =
      parallel_cross_entropy(narrow, s.target, ParallelGroup{}, {.entry_dtype = at::kBFloat16});
  const at::Tensor exact = parallel_cross_entropy(wide, s.target, ParallelGroup{});
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(loss.detach(), exact.detach(), 0, 0.04))
      << "half a step of bf16 at a difference of logits of 8 to 16";
  EXPECT_FALSE(loss.detach().equal(exact.detach())) << "the option was read";
  loss.sum().backward();
  exact.sum().backward();
  EXPECT_TRUE(at::allclose(narrow.grad().to(at::kFloat), wide.grad().to(at::kFloat), 2e-2, 1e-3));
}

TEST(ParallelCrossEntropyTypes, BackwardTwiceIsRefused) {
  const Sample s = sample();
  at::Tensor logits = s.logits.clone().requires_grad_();
  const at::Tensor loss = parallel_cross_entropy(logits, s.target, ParallelGroup{}).sum();
  loss.backward();
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace trellis::trainer::loss_functions_test
