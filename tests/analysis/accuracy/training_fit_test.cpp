// The number between a simulated step and a published one: what it does, and that a fit finds it.
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/accuracy/training_fit.h"

namespace trellis::analysis {
namespace {

Picoseconds overhead(double seconds) {
  return Picoseconds(static_cast<std::int64_t>(seconds * 1e12));
}

SimulatedRow step(double seconds, const std::string& stack) {
  SimulatedRow s{seconds, {}};
  s.software.stack = stack;
  return s;
}

/// Rows whose published time is what the given number says.
std::vector<FitRow> rows_of(Picoseconds truth) {
  std::vector<FitRow> rows;
  int family = 0;
  for (const double seconds : {2.0, 5.0, 11.0}) {
    for (const char* path : {"nxd", "megatron", "megatron", "optimum-neuron"}) {
      const SimulatedRow s = step(seconds, path);
      rows.push_back({s, expected_seconds(s, truth), "family" + std::to_string(family++ % 3)});
    }
  }
  return rows;
}

TEST(TrainingFit, MegatronsSecondsConcernItsRows) {
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "megatron"), overhead(1.5)), 11.5);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "nxd"), overhead(1.5)), 10);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "optimum-neuron"), overhead(1.5)), 10);
}

TEST(TrainingFit, FindsTheNumberThatMadeTheRows) {
  EXPECT_NEAR(to_seconds(fit_step_overhead(rows_of(overhead(1.25)), overhead(0))), 1.25, 0.01);
}

TEST(TrainingFit, ASimulationWithTheNumberIsOneWithoutPlusIt) {
  SimulatedRow s = step(12, "megatron");
  s.software.step_overhead = overhead(1.5);
  EXPECT_DOUBLE_EQ(expected_seconds(s, overhead(1.5)), 12);
  EXPECT_DOUBLE_EQ(expected_seconds(s, overhead(0)), 10.5);
}

TEST(TrainingFit, ANumberThatNoRowTakesStays) {
  EXPECT_EQ(fit_step_overhead({{step(3, "nxd"), 4, "a"}}, overhead(0.5)), overhead(0.5));
}

TEST(TrainingFit, AFamilyIsJudgedByTheNumberOfTheOthers) {
  std::vector<FitRow> rows = rows_of(overhead(1.25));
  for (const double error : leave_one_family_out(rows)) EXPECT_NEAR(error, 0, 0.01);
  // A family that alone knows the number must do without it.
  std::erase_if(rows, [](const FitRow& row) { return row.step.software.stack == "megatron"; });
  rows.push_back({step(10, "megatron"), 11.25, "alone"});
  EXPECT_NEAR(leave_one_family_out(rows).back(), 10 / 11.25 - 1, 1e-9);
}

}  // namespace
}  // namespace trellis::analysis
