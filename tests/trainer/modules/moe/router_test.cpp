#include "trainer/modules/moe/router.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/trainer/modules/moe/one_rank.h"

namespace trellis::trainer::router_test {
namespace {

using testing_support::OneRank;
using testing_support::random;

constexpr std::int64_t kTokens = 40;

Choice route(const OneRank& rank, const at::Tensor& tokens) {
  // Its weight is in the list from then on.
  return Router(rank.context, "router", rank.model)
      .forward(tokens, 0, std::make_shared<RouterRecord>());
}

at::Tensor logits_of(const OneRank& rank, const at::Tensor& tokens) {
  return at::linear(tokens, rank.weight("linear_router.weight")).detach();
}

TEST(Router, TopKTakesTheLargestLogitsAndTheirShareOfAll) {
  const OneRank rank;
  const at::Tensor tokens = random({kTokens, 12}, 1);
  const Choice choice = route(rank, tokens);
  const at::Tensor logits = logits_of(rank, tokens);
  const auto [sorted, order] = logits.sort(-1, /*descending=*/true);
  EXPECT_TRUE(choice.experts.equal(order.narrow(1, 0, 2)));
  const at::Tensor all = logits.exp().sum(-1, true);
  EXPECT_TRUE(at::allclose(choice.affinities, sorted.narrow(1, 0, 2).exp() / all, 1e-12));
}

/// Plain loops, as the paper has them: rows and columns are scaled to their sums alternately.
std::vector<std::int64_t> sinkhorn(const at::Tensor& logits, int iterations) {
  const std::int64_t n = logits.size(0), e = logits.size(1);
  const at::Tensor cost = logits.exp();
  const auto* c = cost.const_data_ptr<double>();
  std::vector<double> rows(static_cast<std::size_t>(n), 1), columns(static_cast<std::size_t>(e), 1);
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < e; ++j)
        sum += columns[static_cast<std::size_t>(j)] * c[i * e + j];
      rows[static_cast<std::size_t>(i)] = 1 / static_cast<double>(n) / (sum + 1e-8);
    }
    for (std::int64_t j = 0; j < e; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += rows[static_cast<std::size_t>(i)] * c[i * e + j];
      columns[static_cast<std::size_t>(j)] = 1 / static_cast<double>(e) / (sum + 1e-8);
    }
  }
  std::vector<std::int64_t> best;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t top = 0;
    for (std::int64_t j = 1; j < e; ++j) {
      if (columns[static_cast<std::size_t>(j)] * c[i * e + j] >
          columns[static_cast<std::size_t>(top)] * c[i * e + top])
        top = j;
    }
    best.push_back(top);
  }
  return best;
}

TEST(Router, SinkhornBalancesInTrainingAndTakesTheLargestLogitOtherwise) {
  OneRank rank;
  rank.model.moe = MoeSection{.num_experts = 6, .top_k = 1, .routing_algorithm = "sinkhorn"};
  const at::Tensor tokens = random({kTokens, 12}, 2) + 1.5;  // they agree about the best expert
  const Choice choice = route(rank, tokens);
  const at::Tensor logits = logits_of(rank, tokens), picked = choice.experts.reshape(-1);
  const std::vector<std::int64_t> expected = sinkhorn(logits, 30);
  for (std::int64_t i = 0; i < kTokens; ++i)
    EXPECT_EQ(picked[i].item<std::int64_t>(), expected[static_cast<std::size_t>(i)]);
  EXPECT_TRUE(at::allclose(choice.affinities, logits.sigmoid().gather(1, choice.experts), 1e-12));
  const auto busiest = [](const at::Tensor& experts) {
    return at::bincount(experts, {}, 6).max().item<std::int64_t>();
  };
  EXPECT_LT(busiest(picked), busiest(logits.argmax(-1)));

  OneRank evaluating;
  evaluating.model = rank.model;
  evaluating.model.moe->router_activation = "softmax";
  evaluating.context.position->training = false;
  const Choice plain = route(evaluating, tokens);
  EXPECT_TRUE(plain.experts.reshape(-1).equal(logits.argmax(-1)));
  EXPECT_TRUE(at::allclose(plain.affinities, at::softmax(logits, -1).gather(1, plain.experts)));
}

TEST(Router, SinkhornThatDoesNotConvergeIsNamed) {
  OneRank rank;
  rank.model.moe = MoeSection{.num_experts = 6,
                              .top_k = 1,
                              .routing_algorithm = "sinkhorn",
                              .sinkhorn_iterations = 2,
                              .sinkhorn_tol = 1e-9};
  try {
    (void)route(rank, random({kTokens, 12}, 2));
    ADD_FAILURE() << "went on";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::ContainsRegex("model.moe.sinkhorn_tol: router: after 2 "
                                                     "iterations the error is .*: expected less "
                                                     "than 1e-09"));
  }
}

/// The two of three groups of four experts are chosen whose best two experts have the largest sum.
TEST(Router, GroupLimitedChoosesWithinTheBestGroups) {
  OneRank rank;
  rank.model.moe = MoeSection{.num_experts = 12,
                              .top_k = 3,
                              .routing_algorithm = "group_limited",
                              .num_groups = 3,
                              .top_k_groups = 2};
  const at::Tensor tokens = random({kTokens, 12}, 4);
  const Choice choice = route(rank, tokens);
  const at::Tensor scores = logits_of(rank, tokens).sigmoid();
  std::int64_t limited = 0;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    std::vector<std::pair<double, int>> groups;
    for (int g = 0; g < 3; ++g) {
      const at::Tensor best =
          std::get<0>(scores[i].narrow(0, g * 4, 4).sort(-1, /*descending=*/true));
      groups.emplace_back(best.narrow(0, 0, 2).sum().item<double>(), g);
    }
    const int worst = std::ranges::min_element(groups)->second;
    at::Tensor left = scores[i].clone();
    left.narrow(0, worst * 4, 4).fill_(-1);
    const at::Tensor expected = std::get<1>(left.sort(-1, true)).narrow(0, 0, 3);
    EXPECT_TRUE(choice.experts[i].equal(expected)) << i;
    limited += !std::get<1>(scores[i].sort(-1, true)).narrow(0, 0, 3).equal(expected);
  }
  EXPECT_GT(limited, 0) << "the groups must matter";
  EXPECT_TRUE(at::allclose(choice.affinities, scores.gather(1, choice.experts), 1e-12));
}

TEST(Router, JitterScalesTokensWithinItsRangeInTrainingOnly) {
  const at::Tensor tokens = random({kTokens, 12}, 5);
  OneRank rank, jittered, evaluating;
  jittered.model.moe->jitter_eps = evaluating.model.moe->jitter_eps = 0.1;
  evaluating.context.position->training = false;
  const at::Tensor plain = route(rank, tokens).logits, moved = route(jittered, tokens).logits;
  EXPECT_TRUE(route(evaluating, tokens).logits.equal(plain));
  const at::Tensor difference = (moved - plain).abs();
  EXPECT_GT(difference.min().item<double>(), 0);
  const at::Tensor bound =
      0.1 * at::linear(tokens.abs(), rank.weight("linear_router.weight").abs());
  EXPECT_TRUE(difference.le(bound).all().item<bool>());
  EXPECT_TRUE(route(OneRank{}, tokens).logits.equal(plain));
}

AuxiliaryLoss loss_of(std::int64_t experts, std::int64_t k) { return {1, experts, k, 1}; }

double value_of(const std::vector<std::int64_t>& assigned, const std::vector<double>& probabilities,
                std::int64_t k, std::int64_t tokens) {
  auto record = std::make_shared<RouterRecord>();
  record->layers[0].assigned = at::tensor(assigned, at::kLong);
  record->layers[0].probabilities = at::tensor(probabilities, at::kDouble);
  const at::Tensor sums = at::tensor({0.0, 1.0}, at::kDouble);
  return with_auxiliary_loss(sums, loss_of(std::ssize(assigned), k), tokens, record)[0]
      .item<double>();
}

TEST(AuxiliaryLoss, IsOneForAnEvenRoutingAndExpertsOverKForACollapse) {
  EXPECT_NEAR(value_of({50, 50, 50, 50}, {0.25, 0.25, 0.25, 0.25}, 2, 100), 1, 1e-12);
  EXPECT_NEAR(value_of({100, 100, 0, 0}, {0.5, 0.5, 0, 0}, 2, 100), 2, 1e-12);
  EXPECT_NEAR(value_of({100, 0, 0, 0}, {1, 0, 0, 0}, 1, 100), 4, 1e-12);
}

/// The formula, and its derivative by LibTorch.
TEST(AuxiliaryLoss, AddsItsGradientToTheLogits) {
  constexpr std::int64_t kExperts = 5, k = 2;
  const at::Tensor start = random({kTokens, kExperts}, 6);
  const at::Tensor experts = std::get<1>(at::topk(start, k, -1));
  const at::Tensor assigned = at::bincount(experts.reshape(-1), {}, kExperts);
  const at::Tensor logits = start.clone().requires_grad_();
  const at::Tensor used = random({kTokens, kExperts}, 7);

  auto record = std::make_shared<RouterRecord>();
  const at::Tensor p = at::softmax(logits.detach(), -1);
  record->layers[0] = {assigned, assigned, {}, p.mean(0)};
  const AuxiliaryLoss auxiliary{0.3, kExperts, k, 1};
  const at::Tensor passed = with_auxiliary_gradient(logits, p, record, 1);
  const at::Tensor sums = at::stack({(passed * used).sum(), at::full({}, 8.0, at::kDouble)});
  const at::Tensor total = with_auxiliary_loss(sums, auxiliary, kTokens, record);
  total[0].backward();

  const at::Tensor plain = start.clone().requires_grad_();
  const at::Tensor share = assigned.to(at::kDouble) / static_cast<double>(kTokens);
  const at::Tensor value = (share * at::softmax(plain, -1).mean(0)).sum() * kExperts / k;
  const at::Tensor expected = (plain * used).sum() + 0.3 * 8.0 * value;
  expected.backward();
  EXPECT_NEAR(total[0].item<double>(), expected.item<double>(), 1e-12);
  EXPECT_TRUE(at::allclose(logits.grad(), plain.grad(), 1e-11, 1e-13));
}

}  // namespace
}  // namespace trellis::trainer::router_test
