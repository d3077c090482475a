#include <algorithm>

#include <gtest/gtest.h>

#include "analysis/explain/constants.h"
#include "analysis/explain/neighbours.h"
#include "base/error.h"
#include "sim/config/load_system.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/step_place.h"

/// The properties by which `trellis explain` compares runs, and the constants that it changes.
namespace trellis::analysis {
namespace {

TEST(UncertainConstants, EveryRangeOfTheHardwareFilesHasEndsThatAMachineTakes) {
  std::size_t refused = 0, taken = 0;
  for (const char* instance : {"trn1.32xlarge", "trn2.48xlarge", "trn3pd98.3xlarge"}) {
    const auto known = sim::instance_names();
    if (std::find(known.begin(), known.end(), instance) == known.end()) continue;
    sim::LoadOptions load;
    load.software = "nxd";
    for (const UncertainConstant& each : uncertain_constants(sim::load_system(instance, load))) {
      for (const std::string& end : {each.least, each.most}) {
        load.overrides = {each.parameter.key + "=" + end};
        try {
          const sim::SystemConfig changed = sim::load_system(instance, load);
          ++taken;
        } catch (const ConfigError& error) {  // a limit of the file's own
          ++refused;
          EXPECT_EQ(std::string(error.what()).find("unit"), std::string::npos) << error.what();
        }
      }
      EXPECT_FALSE(each.measurement.empty());
    }
  }
  EXPECT_GT(taken, 100u);
  EXPECT_LT(refused, taken / 20);
}

TEST(UncertainConstants, SoftwareNumbersBelongToStepsOfThatSoftware) {
  const auto has_software = [](const char* stack) {
    sim::LoadOptions load;
    load.software = stack;
    const auto all = uncertain_constants(sim::load_system("trn1.32xlarge", load));
    return std::any_of(all.begin(), all.end(), [](const UncertainConstant& each) {
      return each.parameter.key.starts_with(sim::kSoftwarePrefix);
    });
  };
  EXPECT_FALSE(has_software(sim::kNoSoftware));
  EXPECT_TRUE(has_software("nxd@2.20"));
}

TEST(EndsOfRange, TakeTheUnitOfTheirRange) {
  EXPECT_EQ(ends_of_range("10 - 60 us"), std::pair(std::string("10 us"), std::string("60 us")));
  EXPECT_EQ(ends_of_range("7.2 - 9.7"), std::pair(std::string("7.2"), std::string("9.7")));
  EXPECT_EQ(ends_of_range("false - true"), std::pair(std::string("false"), std::string("true")));
  EXPECT_EQ(ends_of_range("16"), std::nullopt);
  EXPECT_EQ(ends_of_range(""), std::nullopt);
}

TEST(NearestRows, APublishedRunIsNearestToItself) {
  for (const TrainingRun& run : read_training_runs()) {
    if (run.row.use == RowUse::kExcluded) continue;
    const trainer::RunConfig config =
        trainer::load_run_config(run.config.string(), run.overrides, run.row.instance);
    const StepPlace own = step_place(config, run.row.instance, run.nodes);
    const auto rows = nearest_rows(own, 100);
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const Neighbour& row) { return row.id == run.row.id; });
    ASSERT_NE(found, rows.end()) << run.row.id;
    EXPECT_EQ(distance_between(own, found->place).total, 0) << run.row.id;
    EXPECT_LE(found->distance.total, rows.front().distance.total + 2) << "only its release is old";
    EXPECT_TRUE(found->predicted_s) << run.row.id;
    for (const Neighbour& row : rows) {
      const StepDistance back = distance_between(row.place, own);
      EXPECT_DOUBLE_EQ(back.total, distance_between(own, row.place).total) << "it is symmetric";
      double sum = 0;
      for (const auto& [what, much] : row.distance.parts) sum += much;
      EXPECT_NEAR(sum, row.distance.total, 1e-9) << "its parts add up";
    }
  }
}

TEST(StepDistance, CountsDoublingsAndDifferences) {
  StepPlace a{.instance = "trn1.32xlarge", .software = "nxd"};
  StepPlace b = a;
  b.tp = 8;
  b.sequence_length = 4;
  EXPECT_DOUBLE_EQ(distance_between(a, b).total, 5);
  b.instance = "trn2.48xlarge";
  EXPECT_DOUBLE_EQ(distance_between(a, b).total, 6) << "another generation is another instance";
  b.software = "none";
  b.lora = 1;
  EXPECT_DOUBLE_EQ(distance_between(a, b).total, 8);
  EXPECT_EQ(distance_between(a, b).parts.front().first, "TP");
}

TEST(PartAccuracies, ErrorsAreOrdered) {
  const auto parts = part_accuracies("trn1");
  EXPECT_FALSE(parts.empty());
  for (const PartAccuracy& part : parts) {
    EXPECT_GT(part.rows, 0);
    EXPECT_LE(part.median_error, part.p90_error);
    EXPECT_LE(part.p90_error, part.worst_error);
  }
}

}  // namespace
}  // namespace trellis::analysis
