// The number between a simulated step and a published one: what it does, and that a fit finds it.
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/accuracy/training_fit.h"

namespace trellis::analysis {
namespace {

sim::SoftwareConfig numbers(double megatron_s) {
  sim::SoftwareConfig s;
  s.megatron_step = Picoseconds(static_cast<std::int64_t>(megatron_s * 1e12));
  s.fine_tuning_stretch = 1.2;
  return s;
}

SimulatedRow step(double seconds, const std::string& stack) {
  SimulatedRow s{seconds, numbers(0)};
  s.software.stack = sim::software_profile(stack).value().stack;
  return s;
}

/// Rows whose published time is what the given numbers say.
std::vector<FitRow> rows_of(const sim::SoftwareConfig& truth) {
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
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "megatron"), numbers(1.5)), 11.5);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "nxd"), numbers(1.5)), 10);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "optimum-neuron"), numbers(1.5)), 10);
}

TEST(TrainingFit, FindsTheNumberThatMadeTheRows) {
  const sim::SoftwareConfig found = fit_software(rows_of(numbers(1.25)), numbers(0));
  EXPECT_NEAR(to_seconds(found.megatron_step), 1.25, 0.01);
  EXPECT_EQ(found.fine_tuning_stretch, 1.2) << "it is measured, not fitted to steps";
}

TEST(TrainingFit, ASimulationWithTheNumberIsOneWithoutPlusIt) {
  SimulatedRow s = step(12, "megatron");
  s.software.megatron_step = numbers(1.5).megatron_step;
  EXPECT_DOUBLE_EQ(expected_seconds(s, numbers(1.5)), 12);
  EXPECT_DOUBLE_EQ(expected_seconds(s, numbers(0)), 10.5);
}

TEST(TrainingFit, ANumberThatNoRowTakesStays) {
  const sim::SoftwareConfig found = fit_software({{step(3, "nxd"), 4, "a"}}, numbers(0.5));
  EXPECT_EQ(to_seconds(found.megatron_step), 0.5);
}

TEST(TrainingFit, AFamilyIsJudgedByTheNumberOfTheOthers) {
  std::vector<FitRow> rows = rows_of(numbers(1.25));
  for (const double error : leave_one_family_out(rows)) EXPECT_NEAR(error, 0, 0.01);
  // A family that alone knows the number must do without it.
  std::erase_if(rows, [](const FitRow& row) {
    return row.step.software.stack == sim::SoftwareStack::kMegatron;
  });
  rows.push_back({step(10, "megatron"), 11.25, "alone"});
  EXPECT_NEAR(leave_one_family_out(rows).back(), 10 / 11.25 - 1, 1e-9);
}

}  // namespace
}  // namespace trellis::analysis
