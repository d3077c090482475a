// How far two correct runs may differ by rounding: a size that is measured, a factor that is
// derived.
#include <gmock/gmock.h>

#include <cmath>

#include <ATen/ops/full.h>

#include "trainer/verify/tolerance.h"

namespace trellis::trainer {
namespace {

TEST(Noise, IsTheRootOfTheMeanSquareOverTheRuns) {
  const Errors noise = noise_of({{{"step 1: loss", 0.03}}, {{"step 1: loss", -0.04}}});
  EXPECT_DOUBLE_EQ(noise.at("step 1: loss"), std::sqrt((0.03 * 0.03 + 0.04 * 0.04) / 2));
}

TEST(Noise, IsNoLessThanThatOfTheMedianNumberOfItsKind) {
  const Errors noise = noise_of({{{"step 1: gradient of a.weight", 1e-9},
                                  {"step 1: gradient of b.weight", 0.02},
                                  {"step 1: gradient of c.weight", 0.2},
                                  {"step 1: gradient norm", 1e-5},
                                  {"weight a.weight", 1e-6}}});
  EXPECT_DOUBLE_EQ(noise.at("step 1: gradient of a.weight"), 0.02) << "small by luck";
  EXPECT_DOUBLE_EQ(noise.at("step 1: gradient of c.weight"), 0.2);
  EXPECT_DOUBLE_EQ(noise.at("step 1: gradient norm"), 1e-5) << "another kind";
  EXPECT_DOUBLE_EQ(noise.at("weight a.weight"), 1e-6);
}

/// The first weights of a model of one parameter in run number `run`.
at::Tensor weights_of(int run, double unit_roundoff) {
  Parameter parameter;
  parameter.tensor = at::full({1000}, 3.0, at::kDouble);
  ParameterList parameters = {parameter};
  const RunChanges changes = rounded_otherwise(run, unit_roundoff);
  if (changes.parameters) changes.parameters(parameters, ParallelState());
  return parameters.front().tensor;
}

TEST(RoundingRuns, MoveEachWeightByOneRoundingAtMostAndTheFirstRunByNone) {
  const double u = std::ldexp(1.0, -8);
  EXPECT_TRUE(weights_of(0, u).equal(at::full({1000}, 3.0, at::kDouble)));
  const at::Tensor moved = weights_of(1, u) - 3.0;
  EXPECT_LE(moved.abs().max().item<double>(), 3 * u);
  EXPECT_GT(moved.abs().mean().item<double>(), 3 * u / 4);
  EXPECT_NEAR(moved.mean().item<double>(), 0, 3 * u / 10) << "as often up as down";
  EXPECT_TRUE(weights_of(1, u).equal(weights_of(1, u)));
  EXPECT_FALSE(weights_of(1, u).equal(weights_of(2, u)));
}

TEST(TimesTheNoise, IsTheTailOfARoundingErrorForSoManyNumbers) {
  for (const double numbers : {1.0, 1e4, 1e6}) {
    const double lambda = times_the_noise(static_cast<std::int64_t>(numbers));
    EXPECT_NEAR(numbers * 2 * std::exp(-lambda * lambda / 2), kFalseAlarms, 1e-9);
  }
}

TEST(UnitRoundoff, IsThatOfTheTypeThatValuesAreKeptIn) {
  PrecisionSection precision;
  precision.type = "fp64";
  EXPECT_EQ(unit_roundoff(precision), std::ldexp(1.0, -53));
  precision.type = "fp32";
  precision.weights_bf16 = precision.autocast = false;
  EXPECT_EQ(unit_roundoff(precision), std::ldexp(1.0, -24));
  precision.weights_bf16 = true;
  EXPECT_EQ(unit_roundoff(precision), std::ldexp(1.0, -8));
}

}  // namespace
}  // namespace trellis::trainer
