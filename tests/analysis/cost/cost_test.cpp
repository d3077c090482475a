// Expected times of runs that fail: against sampled runs, limits and each other.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "analysis/cost/amounts.h"
#include "analysis/cost/prices.h"
#include "analysis/cost/run_cost.h"
#include "base/error.h"

namespace trellis::analysis {
namespace {

/// One run, failure by failure: pieces of work with their checkpoints, restarts that fail too.
double sample_run(std::mt19937_64& random, int pieces, double interval, double checkpoint,
                  double restart, double mtbf) {
  std::exponential_distribution<double> failure(1 / mtbf);
  double now = 0, next = failure(random);
  for (int done = 0; done < pieces;) {
    if (now + interval + checkpoint <= next) {
      now += interval + checkpoint;
      ++done;
      continue;
    }
    do {
      now = next;
      next = now + failure(random);
    } while (now + restart > next);
    now += restart;
  }
  return now;
}

TEST(ExpectedTime, IsTheMeanOfSampledRuns) {
  std::mt19937_64 random(1);
  for (const auto& [interval, checkpoint, restart, mtbf] :
       {std::array{100.0, 5.0, 20.0, 400.0}, std::array{30.0, 10.0, 60.0, 200.0},
        std::array{500.0, 1.0, 0.0, 250.0}}) {
    double sum = 0;
    constexpr int kRuns = 4000, kPieces = 20;
    for (int i = 0; i < kRuns; ++i)
      sum += sample_run(random, kPieces, interval, checkpoint, restart, mtbf);
    EXPECT_NEAR(
        sum / kRuns / expected_time(interval * kPieces, interval, checkpoint, restart, mtbf), 1,
        0.02);
  }
}

TEST(OptimumInterval, IsNearlyTheBestOfAll) {
  for (const double mtbf : {1000.0, 20000.0, 86400.0}) {
    for (const double checkpoint : {1.0, 30.0, 300.0}) {
      double best = 1e300;
      for (double interval = 1; interval < 20 * mtbf; interval *= 1.01)
        best = std::min(best, expected_time(1e6, interval, checkpoint, 60, mtbf));
      EXPECT_LE(expected_time(1e6, optimum_interval(checkpoint, mtbf), checkpoint, 60, mtbf),
                best * 1.002)
          << mtbf << " " << checkpoint;
    }
  }
  EXPECT_NEAR(optimum_interval(1, 1e8) / std::sqrt(2e8), 1, 1e-3)
      << "Young's formula for cheap checkpoints";
}

TEST(PlanTime, PartsAddUpToTheExpectedTime) {
  RunPlanInputs in{.step_s = 2,
                   .steps = 100000,
                   .nodes = 16,
                   .validation_s = 60,
                   .validation_every = 1000,
                   .checkpoint_s = 45,
                   .interval_s = {},
                   .node_mtbf_s = 40 * 86400.0,
                   .restart_s = 600};
  const RunTime time = plan_time(in);
  EXPECT_TRUE(time.interval_is_optimum);
  EXPECT_DOUBLE_EQ(time.steps_s, 200000);
  EXPECT_DOUBLE_EQ(time.validation_s, 6000);
  const double mtbf = 40 * 86400.0 / 16;
  EXPECT_NEAR(time.total_s(), expected_time(206000, *time.interval_s, 45, 600, mtbf),
              1e-6 * time.total_s());
  EXPECT_NEAR(time.failures, time.total_s() / mtbf, 1e-9 * time.failures);
  EXPECT_GT(time.lost_work_s, 0);
  in.node_mtbf_s.reset();
  EXPECT_DOUBLE_EQ(plan_time(in).total_s(), 206000)
      << "nothing fails and no one asked for checkpoints";
  in.interval_s = 1000;
  EXPECT_DOUBLE_EQ(plan_time(in).total_s(), 206000 + 206 * 45);
}

TEST(PlanTime, MoreFailuresNeverCostLess) {
  double before = 0;
  for (const double days : {1000.0, 100.0, 30.0, 10.0, 3.0}) {
    const double total = plan_time({.step_s = 1,
                                    .steps = 1000000,
                                    .nodes = 64,
                                    .checkpoint_s = 30,
                                    .interval_s = {},
                                    .node_mtbf_s = days * 86400,
                                    .restart_s = 300})
                             .total_s();
    EXPECT_GT(total, before);
    before = total;
  }
}

TEST(PlanTime, RefusesWhatDoesNotEndOrHasNoBest) {
  EXPECT_THROW(static_cast<void>(plan_time({.step_s = 1,
                                            .steps = 100000,
                                            .nodes = 1000,
                                            .checkpoint_s = 1,
                                            .interval_s = 50000,
                                            .node_mtbf_s = 86400.0})),
               ConfigError);
  EXPECT_THROW(static_cast<void>(plan_time({.step_s = 1,
                                            .steps = 1000,
                                            .nodes = 1,
                                            .checkpoint_s = 0,
                                            .interval_s = {},
                                            .node_mtbf_s = 86400.0})),
               ConfigError);
}

TEST(Amounts, AreReadWithTheirUnits) {
  EXPECT_DOUBLE_EQ(parse_duration("--mtbf", "30d"), 30 * 86400);
  EXPECT_DOUBLE_EQ(parse_duration("--mtbf", "1.5 h"), 5400);
  EXPECT_DOUBLE_EQ(parse_count("--tokens", "2T"), 2e12);
  EXPECT_DOUBLE_EQ(parse_count("--tokens", "15e9"), 15e9);
  for (const char* bad :
       {"", "30", "d", "-3d", "3 weeks", "nan s", "inf s", "1e999 s", "3d4", "1e300d"})
    EXPECT_THROW(static_cast<void>(parse_duration("--mtbf", bad)), ConfigError) << bad;
  for (const char* bad : {"", "0", "-2T", "2X", "T", "nan", "2TT", "1e30"})
    EXPECT_THROW(static_cast<void>(parse_count("--tokens", bad)), ConfigError) << bad;
}

class Prices : public testing::Test {
 protected:
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("prices_" + std::to_string(::getpid()) + ".yaml");
  void TearDown() override { std::filesystem::remove(file); }
  std::string error_of(const std::string& text) {
    std::ofstream(file) << text;
    try {
      static_cast<void>(read_prices(file));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Prices, OfTheExampleHaveDateAndSources) {
  const PriceFile prices = read_prices(std::string(TRELLIS_SOURCE_DIR) + "/examples/prices.yaml");
  EXPECT_EQ(prices.currency, "USD");
  for (const InstancePrices& instance : prices.instances) {
    for (const PricePlan& plan : instance.plans)
      EXPECT_FALSE(plan.source.empty()) << instance.instance;
  }
  EXPECT_EQ(prices.of("trn1.32xlarge").plans.at(0).name, "on_demand");
  EXPECT_THROW(static_cast<void>(prices.of("p5.48xlarge")), ConfigError);
}

TEST_F(Prices, EveryProblemIsNamed) {
  const std::string good = "currency: USD\ninstances:\n  a:\n    spot: {per_hour: 1, source: x}\n";
  EXPECT_EQ(error_of("date: 2026-11-22\n" + good), "");
  EXPECT_NE(error_of(good).find("date"), std::string::npos);
  for (const char* date : {"2026-13-01", "2026-02-30", "yesterday", "22.11.2026"}) {
    const std::string error = error_of("date: " + std::string(date) + "\n" + good);
    EXPECT_NE(error.find("YYYY-MM-DD"), std::string::npos) << error;
    EXPECT_NE(error.find(":1:date"), std::string::npos) << error;
  }
  EXPECT_NE(error_of("date: 2026-11-22\ncurrency: USD\ninstances:\n  a:\n    spot: {per_hour: -1, "
                     "source: x}\n")
                .find("above 0"),
            std::string::npos);
  EXPECT_NE(error_of("date: 2026-11-22\ncurrency: USD\ninstances:\n  a:\n    spot: {per_hour: 1}\n")
                .find("source"),
            std::string::npos);
  EXPECT_NE(error_of("date: 2026-11-22\ncurrency: USD\ninstances:\n  a:\n    spot: 3\n")
                .find("per_hour and source"),
            std::string::npos);
  EXPECT_NE(error_of("date: 2026-11-22\nprices: 3\n" + good).find("prices"), std::string::npos);
}

}  // namespace
}  // namespace trellis::analysis
