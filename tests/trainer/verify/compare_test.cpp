// The differences that count: relative to a tensor's own norm, or to its share when nothing but
// rounding is left of it.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include <ATen/ops/full.h>

#include "trainer/verify/compare.h"

namespace trellis::trainer {
namespace {

at::Tensor filled(std::int64_t elements, double value) {
  return at::full({elements}, value, at::kDouble);
}

/// Two layers; gradients and weights of `first` and `second`.
RunNumbers numbers(double first, double second) {
  RunNumbers run;
  run.names = {"layers.0.weight", "layers.1.bias"};
  run.steps.push_back(
      {2.5, 0.75, {{"layers.0.weight", filled(30, first)}, {"layers.1.bias", filled(10, second)}}});
  run.weights = {{"layers.0.weight", filled(30, 0.5)}, {"layers.1.bias", filled(10, 0.5)}};
  return run;
}

Comparison in_fp64(const RunNumbers& got, const RunNumbers& expected) {
  return compare(got, expected, 1e-6, [](const std::string&) { return 1e-10; });
}

TEST(Compare, EqualRunsHaveNoError) {
  const Comparison found = in_fp64(numbers(1, 1), numbers(1, 1));
  EXPECT_EQ(found.num_bad, 0);
  EXPECT_EQ(found.num_compared, 6);  // loss, two gradients, their norm, two weights
  EXPECT_EQ(found.num_by_share, 0);
  EXPECT_EQ(found.worst.error, 0);
  EXPECT_EQ(found.largest_tolerance, 1e-10);
}

TEST(Compare, ASmallTensorIsMeasuredByItsOwnNorm) {
  const Comparison found = in_fp64(numbers(1, 1.01e-5), numbers(1, 1e-5));
  ASSERT_EQ(found.num_bad, 1);
  EXPECT_EQ(found.first_bad->what, "step 1: gradient of layers.1.bias");
  EXPECT_NEAR(found.first_bad->error, 0.01, 1e-9);
  EXPECT_FALSE(found.first_bad->by_share);
}

TEST(Compare, WhatNearlyVanishesIsMeasuredByItsShareOfTheNorm) {
  const RunNumbers got = numbers(1, -3e-17), expected = numbers(1, 1e-17);
  const Comparison found = in_fp64(got, expected);
  EXPECT_EQ(found.num_bad, 0);
  EXPECT_EQ(found.num_by_share, 1);
  EXPECT_TRUE(found.worst.by_share);
  EXPECT_NEAR(found.worst.error, 4e-17 / std::sqrt(30.0 / 40), 1e-20);
  EXPECT_EQ(compare(got, expected, 0, [](const std::string&) { return 1e-10; }).num_bad, 1)
      << "by its own norm it is four times wrong";
}

TEST(Compare, AVanishingTensorThatGrowsIsWrong) {
  const Comparison found = in_fp64(numbers(1, 1e-9), numbers(1, 1e-17));
  ASSERT_EQ(found.num_bad, 1);
  EXPECT_EQ(found.first_bad->layer, "layers.1");
}

TEST(Compare, TheFirstIsTheFirstThatARunComputes) {
  RunNumbers got = numbers(2, 2);
  got.steps[0].loss = 3;
  const Comparison found = in_fp64(got, numbers(1, 1));
  EXPECT_EQ(found.first_bad->what, "step 1: loss");
  EXPECT_EQ(found.first_bad->layer, "");
  EXPECT_EQ(found.first_bad_tensor->what, "step 1: gradient of layers.1.bias")
      << "backward starts at the last layer";
  EXPECT_EQ(found.first_bad_tensor->layer, "layers.1");
}

TEST(Compare, WhatIsMissingOrNoNumberOrNotTheSameBitsIsWrong) {
  RunNumbers got = numbers(1, 1);
  got.steps[0].gradients.erase("layers.0.weight");
  got.steps[0].grad_norm = std::numeric_limits<double>::quiet_NaN();
  got.weights["layers.0.weight"] = filled(29, 0.5);
  got.weights["layers.1.bias"].fill_(std::numeric_limits<double>::quiet_NaN());
  got.unequal_copies = {"layers.1.bias"};
  EXPECT_EQ(in_fp64(got, numbers(1, 1)).num_bad, 5);
  got.steps.clear();
  EXPECT_EQ(in_fp64(got, numbers(1, 1)).first_bad->what, "step 1: loss");
}

TEST(Compare, ErrorsAreListedByWhatTheyAreOf) {
  const auto errors = errors_of(numbers(1.5, 1), numbers(1, 1), 0);
  EXPECT_EQ(errors.size(), 6U);
  EXPECT_DOUBLE_EQ(errors.at("step 1: gradient of layers.0.weight"), 0.5);
  EXPECT_EQ(errors.at("weight layers.1.bias"), 0);
}

}  // namespace
}  // namespace trellis::trainer
