// Played failures against Daly's expectation, his and Young's optimum, and laws that hold anywhere.
#include "analysis/cost/goodput.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/cost/run_cost.h"

namespace trellis::analysis {
namespace {

using ::testing::HasSubstr;

GoodputInputs synchronous(double save, double mtbf, double restart) {
  return {.step_s = 1, .mtbf_s = mtbf, .wait_s = save, .complete_s = save, .restart_s = restart};
}

TEST(Goodput, SharesAddUpAndEqualDalysExpectation) {
  for (const auto& [save, mtbf, restart] :
       {std::tuple(10.0, 86400.0, 300.0), std::tuple(60.0, 7200.0, 600.0),
        std::tuple(300.0, 3600.0, 1200.0)}) {
    const GoodputInputs inputs = synchronous(save, mtbf, restart);
    for (const double interval : {mtbf / 50, mtbf / 8, mtbf / 2}) {
      const GoodputPoint point = play_failures(inputs, interval);
      EXPECT_NEAR(point.goodput + point.saving + point.lost + point.restarting, 1, 1e-9);
      const double expected = 1 / expected_time(1, interval, save, restart, mtbf);
      EXPECT_NEAR(point.goodput, expected, 0.005) << save << " " << mtbf << " " << interval;
    }
  }
}

TEST(Goodput, TheBestIntervalIsYoungsAndDalysWhereTheirAssumptionsHold) {
  for (const double save : {5.0, 60.0}) {
    for (const double mtbf : {6 * 3600.0, 7 * 24 * 3600.0}) {
      GoodputInputs inputs = synchronous(save, mtbf, 300);
      inputs.failures = 300'000;
      const GoodputCurve curve = goodput_curve(inputs);
      EXPECT_NEAR(curve.best.interval_s / curve.daly_s, 1, 0.05) << save << " " << mtbf;
      EXPECT_NEAR(curve.best.interval_s / curve.young_s, 1, 0.05) << save << " " << mtbf;
      EXPECT_THAT(compare_with_formulas(inputs, curve), HasSubstr("their assumptions hold"));
    }
  }
}

TEST(Goodput, AnAsynchronousSaveIsBestAtAnotherIntervalAndTheReasonIsSaid) {
  GoodputInputs inputs{
      .step_s = 1, .mtbf_s = 86400, .wait_s = 0.5, .complete_s = 600, .restart_s = 300};
  const GoodputCurve curve = goodput_curve(inputs);
  EXPECT_GT(curve.best.interval_s, 1.3 * curve.daly_s);
  EXPECT_GT(curve.best.goodput, play_failures(inputs, curve.daly_s).goodput);
  EXPECT_THAT(compare_with_formulas(inputs, curve), HasSubstr("saves are asynchronous"));
  GoodputInputs blocking = inputs;
  blocking.wait_s = blocking.complete_s;
  EXPECT_GT(curve.best.goodput, goodput_curve(blocking).best.goodput);
}

TEST(Goodput, WorseInputsAreNeverBetter) {
  const GoodputInputs inputs = synchronous(20, 86400, 300);
  const double goodput = goodput_curve(inputs).best.goodput;
  for (const GoodputInputs& worse :
       {synchronous(40, 86400, 300), synchronous(20, 43200, 300), synchronous(20, 86400, 600)})
    EXPECT_LT(goodput_curve(worse).best.goodput, goodput);
}

TEST(Goodput, TheSameSeedGivesTheSameFailures) {
  GoodputInputs inputs = synchronous(20, 86400, 300);
  const double first = play_failures(inputs, 1000).goodput;
  EXPECT_EQ(play_failures(inputs, 1000).goodput, first);
  inputs.seed = 2;
  EXPECT_NE(play_failures(inputs, 1000).goodput, first);
}

}  // namespace
}  // namespace trellis::analysis
