// Tokens are drawn with the probabilities that temperature, top_k and top_p leave.
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/evaluation/sampling.h"

namespace trellis::trainer {
namespace {

const std::vector<float> kLogits{1.0F, 3.0F, 0.5F, 2.0F, 3.0F};

/// Share of each token when draws are even.
std::map<std::int64_t, double> shares(const SamplingOptions& options) {
  constexpr int kDraws = 20'000;
  std::map<std::int64_t, double> found;
  for (int i = 0; i < kDraws; ++i)
    found[choose_token(kLogits, options, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  return found;
}

double weight(std::size_t token, double temperature) {
  return std::exp(kLogits[token] / temperature);
}

TEST(Sampling, GreedyTakesTheFirstOfTheLikeliest) {
  for (const double draw : {0.0, 0.5, 0.999}) EXPECT_EQ(choose_token(kLogits, {}, draw), 1);
}

TEST(Sampling, DrawsWithTheSoftmaxOfTheTemperature) {
  for (const double temperature : {0.3, 1.0, 2.5}) {
    double sum = 0;
    for (std::size_t i = 0; i < kLogits.size(); ++i) sum += weight(i, temperature);
    for (const auto& [token, share] : shares({.temperature = temperature}))
      EXPECT_NEAR(share, weight(static_cast<std::size_t>(token), temperature) / sum, 2e-4);
  }
}

TEST(Sampling, TopKKeepsTheLikeliest) {
  const auto found = shares({.temperature = 1, .top_k = 3});
  ASSERT_EQ(found.size(), 3u);
  const double sum = weight(1, 1) + weight(4, 1) + weight(3, 1);
  EXPECT_NEAR(found.at(3), weight(3, 1) / sum, 2e-4);
  EXPECT_EQ(shares({.temperature = 1, .top_k = 99}).size(), kLogits.size());
}

TEST(Sampling, TopPKeepsTheFewestThatHaveTheShare) {
  double sum = 0;
  for (std::size_t i = 0; i < kLogits.size(); ++i) sum += weight(i, 1);
  const double two = (weight(1, 1) + weight(4, 1)) / sum;
  EXPECT_EQ(shares({.temperature = 1, .top_p = two - 0.01}).size(), 2u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = two + 0.01}).size(), 3u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 1e-9}).size(), 1u);
}

TEST(Sampling, DrawsDependOnSeedRecordAndPlaceAndAreEven) {
  EXPECT_EQ(draw_of(1, 2, 3), draw_of(1, 2, 3));
  std::set<double> different{draw_of(1, 2, 3), draw_of(2, 2, 3),  draw_of(1, 3, 3),
                             draw_of(1, 2, 4), draw_of(1, 23, 0), draw_of(12, 3, 0)};
  EXPECT_EQ(different.size(), 6u);
  double sum = 0;
  for (int place = 0; place < 10'000; ++place) {
    const double draw = draw_of(7, 0, place);
    EXPECT_GE(draw, 0);
    EXPECT_LT(draw, 1);
    sum += draw;
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.01);
}

}  // namespace
}  // namespace trellis::trainer
