// The few numbers between a simulated step and a published one: what they do, and that a fit finds
// them.
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/accuracy/training_fit.h"

namespace trellis::analysis {
namespace {

sim::SoftwareConfig numbers(double multi_node, double megatron_s, double fine_tuning) {
  sim::SoftwareConfig s;
  s.multi_node_stretch = multi_node;
  s.megatron_step = Picoseconds(static_cast<std::int64_t>(megatron_s * 1e12));
  s.fine_tuning_stretch = fine_tuning;
  return s;
}

SimulatedRow step(double seconds, const std::string& stack, int nodes, double share = 1) {
  SimulatedRow s{seconds, share, 0, nodes, numbers(1.05, 0, 1)};
  s.software.stack = sim::software_profile(stack).value().stack;
  return s;
}

/// Rows whose published time is what the given numbers say.
std::vector<FitRow> rows_of(const sim::SoftwareConfig& truth) {
  std::vector<FitRow> rows;
  int family = 0;
  for (const double seconds : {2.0, 5.0, 11.0}) {
    for (const auto& [path, nodes] : {std::pair{"nxd", 16},
                                      {"nxd", 1},
                                      {"megatron", 4},
                                      {"megatron", 1},
                                      {"optimum-neuron", 1}}) {
      const SimulatedRow s = step(seconds, path, nodes, 0.8);
      rows.push_back({s, expected_seconds(s, truth), "family" + std::to_string(family++ % 4)});
    }
  }
  return rows;
}

TEST(TrainingFit, EachNumberConcernsItsRows) {
  const sim::SoftwareConfig n = numbers(1.1, 1.5, 1.4);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "nxd", 1), n), 10);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10.5, "nxd", 2), n), 11);
  EXPECT_DOUBLE_EQ(expected_seconds(step(21, "nxd", 2, 0.5), n), 21.5)
      << "communication is not stretched";
  EXPECT_DOUBLE_EQ(expected_seconds(step(10.5, "megatron", 2), n), 12.5);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "megatron", 1), n), 11.5);
  EXPECT_DOUBLE_EQ(expected_seconds(step(10, "optimum-neuron", 1), n), 14);
  SimulatedRow tuned = step(10, "optimum-neuron", 1);
  tuned.programs_share = 0.7, tuned.optimizer_share = 0.3;
  EXPECT_DOUBLE_EQ(expected_seconds(tuned, n), 7 * 1.4 + 3)
      << "the optimizer's programs belong to none";
  SimulatedRow spread = step(10.5, "nxd", 2);
  spread.programs_share = 0.7, spread.optimizer_share = 0.3;
  EXPECT_DOUBLE_EQ(expected_seconds(spread, n), 11) << "but those of several instances";
}

TEST(TrainingFit, FindsTheNumbersThatMadeTheRows) {
  const sim::SoftwareConfig truth = numbers(1.05, 1.25, 1.37),
                            found = fit_software(rows_of(truth), numbers(1.05, 0, 1));
  EXPECT_EQ(found.multi_node_stretch, 1.05) << "it is measured, not fitted";
  EXPECT_NEAR(to_seconds(found.megatron_step), 1.25, 0.03);
  EXPECT_NEAR(found.fine_tuning_stretch, 1.37, 0.005);
}

TEST(TrainingFit, ASimulationWithTheNumbersIsSplitIntoParts) {
  const sim::SoftwareConfig n = numbers(1.1, 1.5, 1.4);
  SimulatedRow s = step(0, "megatron", 4, 7.5 / 12);
  s.software = n, s.software.stack = sim::SoftwareStack::kMegatron;
  s.seconds = 12;  // 3 s of waits, 1.5 s of the host, 7.5 s of programs
  EXPECT_DOUBLE_EQ(expected_seconds(s, n), 12);
  EXPECT_DOUBLE_EQ(expected_seconds(s, numbers(1.2, 0, 1)), 3 + 7.5 * 1.2 / 1.1);
}

TEST(TrainingFit, ANumberThatNoRowTakesStays) {
  const SimulatedRow s = step(3, "nxd", 1);
  const sim::SoftwareConfig found = fit_software({{s, 4, "a"}}, numbers(1.05, 0.5, 1.2));
  EXPECT_EQ(found.multi_node_stretch, 1.05);
  EXPECT_EQ(to_seconds(found.megatron_step), 0.5);
  EXPECT_EQ(found.fine_tuning_stretch, 1.2);
}

TEST(TrainingFit, AFamilyIsJudgedByNumbersOfTheOthers) {
  std::vector<FitRow> rows = rows_of(numbers(1.05, 1.25, 1.37));
  for (const double error : leave_one_family_out(rows)) EXPECT_NEAR(error, 0, 0.01);
  // A family that alone knows a number must do without it.
  std::erase_if(rows, [](const FitRow& row) {
    return row.step.software.stack == sim::SoftwareStack::kOptimumNeuron;
  });
  const SimulatedRow alone = step(10, "optimum-neuron", 1);
  rows.push_back({alone, 13.7, "alone"});
  EXPECT_NEAR(leave_one_family_out(rows).back(), 10 / 13.7 - 1, 1e-9);
}

}  // namespace
}  // namespace trellis::analysis
