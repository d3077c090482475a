#include "traces/report/measured_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/traces/report/made_report.h"
#include "traces/report/perf_gate.h"
#include "traces/report/run_diff.h"
#include "traces/report/run_report.h"
#include "traces/report/timed_columns.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json rank_row(int rank, double forward, double other, std::int64_t bytes) {
  return {{"rank", rank},
          {"device", "cuda:" + std::to_string(rank)},
          {"step_time_s", forward + other},
          {"phases", {{"forward", forward}, {"other", other}}},
          {"memory",
           {{"peak_allocated_bytes", bytes},
            {"peak_reserved_bytes", bytes + 10},
            {"capacity_bytes", 1000}}}};
}

/// Rank 1 is the slowest; rank 0 the fullest.
json measured(double forward) {
  return {{"schema", "trellis.measured/1"},
          {"device", "cuda"},
          {"provider", "trellis-torch-device"},
          {"backend", "nccl"},
          {"clock", "device events"},
          {"steps", 9},
          {"warmup_steps", 1},
          {"step_time_s", forward + 0.25},
          {"fastest_step_s", forward},
          {"slowest_step_s", forward + 1},
          {"slowest_rank", 1},
          {"phases", {{"forward", forward}, {"other", 0.25}}},
          {"ranks", {rank_row(0, forward / 2, 0.25, 900), rank_row(1, forward, 0.25, 700)}}};
}

json measured_report(double forward) {
  json report = made_report(json::array({row("forward", "mlp", "mm", "compute", 4000)}));
  for (const char* key : {"simulated", "memory", "portability", "mfu", "mfu_denominator_flops",
                          "instance", "nodes", "step_time_ms", "tokens_per_s"})
    report.erase(key);
  report["device"] = "cuda";
  add_measured(report, measured(forward));
  return report;
}

TEST(MeasuredStep, RatesFollowFromTheStep) {
  const json report = measured_report(1.75);
  check_run_report(report, "made");
  EXPECT_EQ(report.at("step_time_ms"), 2000);
  EXPECT_EQ(report.at("tokens_per_s"), 32) << "64 tokens in 2 s";
  const TimedStep step = timed_step(report, "made");
  EXPECT_EQ(step.ps, 2'000'000'000'000);
  EXPECT_EQ(step.rank, 1);
  EXPECT_EQ(step.peak_bytes, 900);
  EXPECT_EQ(kind_of(step), "measured");
  EXPECT_THAT(print_run_report(report), HasSubstr("cuda:1"));
}

TEST(MeasuredStep, WithoutAStepNothingIsAdded) {
  json report = {{"tokens_per_step", 1}};
  add_measured(report, nullptr);
  add_measured(report, {{"schema", "trellis.measured/1"}, {"ranks", json::array()}});
  EXPECT_EQ(report.size(), 1);
}

TEST(MeasuredStep, DamageIsNamed) {
  json report = measured_report(1);
  report["measured"]["ranks"][1]["phases"]["forward"] = "long";
  report["measured"].erase("clock");
  try {
    check_run_report(report, "made");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("made.measured.clock"));
  }
  report["measured"]["clock"] = "host clock";
  EXPECT_THROW(check_run_report(report, "made"), ConfigError);
}

TEST(MeasuredStep, PhasesExplainTheChange) {
  const RunDiff diff = diff_runs(made_file(measured_report(1)), made_file(measured_report(3)));
  EXPECT_EQ(diff.step_change_ps(), 2'000'000'000'000);
  EXPECT_EQ(diff.unexplained_ps, 0);
  EXPECT_THAT(first_cause(diff), HasSubstr("forward"));
  EXPECT_THAT(diff_text(diff, 10), HasSubstr("Measured step"));
}

TEST(MeasuredStep, AModelIsComparedWithADevice) {
  const ReportFile model =
      made_file(made_report({row("forward", "mlp", "mm", "compute", 500'000'000'000),
                             row("", "", "idle", "other", 500'000'000'000)}));
  const std::string text = timed_columns_text({model, made_file(measured_report(5.5))});
  EXPECT_THAT(text, HasSubstr("simulated"));
  EXPECT_THAT(text, HasSubstr("3.00 ×")) << "1 s, and 3 s of the rank of its stage";
  EXPECT_THAT(text, HasSubstr("Largest difference: forward +2250 ms, 112 % of the step's"));
  EXPECT_FALSE(diff_runs(model, made_file(measured_report(1))).simulated_after);
}

TEST(MeasuredStep, TheGateTakesItsTimeAndMemory) {
  ReportFile baseline = made_file(make_baseline(made_file(measured_report(1))).at("report"));
  const GateLimits limits{parse_limit("--max-regression", "10%"),
                          parse_limit("--max-memory-growth", "0%")};
  EXPECT_TRUE(judge(baseline, made_file(measured_report(1.1)), limits, false).passed());
  EXPECT_FALSE(judge(baseline, made_file(measured_report(1.2)), limits, false).passed());
  const ReportFile model =
      made_file(made_report(json::array({row("forward", "mlp", "mm", "compute", 4000)})));
  EXPECT_THROW((void)judge(baseline, model, limits, false), ConfigError);
}

TEST(MeasuredStep, AGateOfMemoryNeedsItInBothReports) {
  json without = measured_report(1.0);
  for (json& rank : without["measured"]["ranks"]) rank.erase("memory");
  const auto gate = [](const json& before, const json& after) {
    return judge(made_file(before), made_file(after),
                 {parse_limit("--a", "0%"), parse_limit("--b", "0%")});
  };
  EXPECT_EQ(gate(measured_report(1.0), measured_report(1.0)).metrics.size(), 2u);
  EXPECT_EQ(gate(without, without).metrics.size(), 1u) << "a device that counts none";
  for (const auto& [before, after] :
       {std::pair(measured_report(1.0), without), std::pair(without, measured_report(1.0))}) {
    EXPECT_THAT([&] { (void)gate(before, after); },
                testing::ThrowsMessage<ConfigError>(
                    HasSubstr("measured.ranks: expected the memory that the device counted")));
  }
}

}  // namespace
}  // namespace trellis::analysis
