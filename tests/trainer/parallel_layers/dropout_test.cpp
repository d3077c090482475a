// Dropout: one mask for every layout; the right rate; new numbers where they must be new.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/dropout.h"

namespace trellis::trainer {
namespace {

using namespace testing_support;

class DropoutLayouts : public testing::TestWithParam<Setup> {};

TEST_P(DropoutLayouts, EveryRankDropsWhatOneRankDrops) {
  const at::Tensor hidden = random({96, 2, 5}, 1), probabilities = random({2, 24, 6, 6}, 2),
                   grad = random({96, 2, 5}, 3);
  Rank one{ParallelState()};
  at::Tensor x = hidden.clone().requires_grad_();
  const at::Tensor dense = Dropout(one.context, "a", 0.3).forward(x);
  dense.backward(grad);
  const at::Tensor dense_heads =
      Dropout(one.context, "b", 0.3)
          .forward(probabilities, ShardPlace::part(1, 24, one.context.tp()));
  run(GetParam(), [&](Rank& rank) {
    at::Tensor local = rank.region(hidden).clone().requires_grad_();
    const at::Tensor output = Dropout(rank.context, "a", 0.3).forward(local);
    output.backward(rank.region(grad));
    EXPECT_TRUE(output.equal(rank.region(dense)));
    EXPECT_TRUE(local.grad().equal(rank.region(x.grad())));
    const at::Tensor heads = rank.own(probabilities, 1);
    const ShardPlace place = ShardPlace::part(1, heads.size(1), rank.context.tp());
    EXPECT_TRUE(
        Dropout(rank.context, "b", 0.3).forward(heads, place).equal(rank.own(dense_heads, 1)));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DropoutLayouts,
                         testing::Values(Setup{1}, Setup{2}, Setup{2, true}, Setup{4, true},
                                         Setup{8, true}, Setup{3, true}),
                         [](const auto& test) { return name_of(test.param); });

TEST(Dropout, HeadsInAnyOrderGetTheirOwnMask) {
  Rank one{ParallelState()};
  const Dropout dropout(one.context, "attention", 0.5);
  const at::Tensor full = dropout.keep_mask({2, 8, 16, 16}, {1, 8, {{0, 8}}});
  const at::Tensor some = dropout.keep_mask({2, 3, 16, 16}, {1, 8, {{6, 1}, {1, 2}}});
  EXPECT_TRUE(some.equal(full.index_select(1, at::tensor({6, 1, 2}))));
}

TEST(Dropout, TheRateAndTheScaleAreRight) {
  Rank one{ParallelState()};
  const at::Tensor output =
      Dropout(one.context, "a", 0.25).forward(at::ones({1000, 10, 10}, at::kDouble));
  EXPECT_NEAR(output.eq(0).to(at::kDouble).mean().item<double>(), 0.25, 0.01);
  EXPECT_NEAR(output.max().item<double>(), 1 / 0.75, 1e-15);
}

TEST(Dropout, SeedStepMicroBatchPathAndPlaceEachGiveANewMask) {
  Rank one{ParallelState()};
  const auto mask = [&](const char* path) {
    return Dropout(one.context, path, 0.5).keep_mask({64, 8}, {0, 64, {{0, 64}}});
  };
  const at::Tensor first = mask("a");
  EXPECT_TRUE(mask("a").equal(first));
  EXPECT_FALSE(mask("b").equal(first));
  one.context.position->step = 1;
  EXPECT_FALSE(mask("a").equal(first));
  *one.context.position = {0, 1};
  EXPECT_FALSE(mask("a").equal(first));
  *one.context.position = {};
  one.context.seed += 1;
  EXPECT_FALSE(mask("a").equal(first));
  EXPECT_FALSE(first.narrow(0, 0, 32).equal(first.narrow(0, 32, 32)));
}

TEST(Dropout, ZeroIsTheIdentityAndOneDropsAll) {
  Rank one{ParallelState()};
  const at::Tensor x = random({4, 2, 3}, 1);
  EXPECT_TRUE(Dropout(one.context, "a", 0).forward(x).is_same(x));
  EXPECT_EQ(Dropout(one.context, "a", 1).forward(x).abs().sum().item<double>(), 0);
  EXPECT_THROW(Dropout(one.context, "a", 1.5), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
