#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/trainer/report/made_report.h"
#include "trainer/report/run_diff.h"

namespace trellis::trainer {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json base_rows() {
  return {row("forward", "model.layers.*.mlp", "mm", "compute", 4000, 32), row("forward", "model.layers.*.mlp", "all_reduce", "comm_tp", 1000, 32),
          row("backward", "model.layers.*.mlp", "mm", "compute", 8000, 64), row("", "", "", "launch", 500), row("", "", "idle", "other", 10)};
}

TEST(RunDiff, TablesAddUpToTheChangeWhateverTheRows) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const RunDiff diff = diff_runs(made_file(made_report(random_rows(random))), made_file(made_report(random_rows(random))));
    ASSERT_TRUE(diff.attributed);
    EXPECT_EQ(diff.causes.change(), diff.step_change_ps());
    for (const DiffTable& table : diff.step) EXPECT_EQ(table.change(), diff.step_change_ps()) << table.title;
    std::int64_t nothing = 0;
    for (const DiffRow& r : diff.causes.rows) nothing += r.name == " (other)" ? r.change() : 0;
    EXPECT_EQ(diff.unexplained_ps, nothing) << "only the row that names nothing is unexplained";
  }
}

TEST(RunDiff, AnAddedCommunicationIsTheFirstCause) {
  json rows = base_rows();
  rows[1]["time_ps"] = 2000;
  rows[1]["count"] = 64;
  const RunDiff diff = diff_runs(made_file(made_report(base_rows())), made_file(made_report(rows)));
  EXPECT_EQ(diff.step_change_ps(), 1000);
  EXPECT_EQ(diff.unexplained_ps, 0);
  EXPECT_DOUBLE_EQ(diff.explained(), 1);
  EXPECT_THAT(first_cause(diff), HasSubstr("forward · model.layers.*.mlp · all_reduce (comm_tp)"));
  EXPECT_THAT(first_cause(diff), HasSubstr("32 → 64 times"));
}

TEST(RunDiff, TimeThatNoRowNamesIsUnexplained) {
  json rows = base_rows();
  rows[4]["time_ps"] = 310;
  rows[0]["time_ps"] = 4700;
  const RunDiff named = diff_runs(made_file(made_report(base_rows())), made_file(made_report(rows)));
  EXPECT_EQ(named.unexplained_ps, 300);
  EXPECT_DOUBLE_EQ(named.explained(), 0.7);
  json report = made_report(base_rows());
  report["simulated"]["step_time_ps"] = report["simulated"]["step_time_ps"].get<std::int64_t>() + 77;
  EXPECT_EQ(diff_runs(made_file(made_report(base_rows())), made_file(report)).unexplained_ps, 77) << "a step that its rows do not add up to";
}

TEST(RunDiff, OfARunWithItselfIsEqualWhateverTheFolder) {
  const json report = made_report(base_rows());
  const RunDiff diff = diff_runs(made_file(report, {{"exp_manager.explicit_log_dir", "a"}, {"model.num_layers", "2"}}),
                                 made_file(report, {{"exp_manager.explicit_log_dir", "b"}, {"model.num_layers", "2"}}, "other/report.json"));
  EXPECT_TRUE(diff.equal());
  EXPECT_THAT(diff_text(diff, 10), HasSubstr("Equal"));
  EXPECT_EQ(to_json(diff).at("equal"), true);
}

TEST(RunDiff, EverythingElseThatDiffersIsListed) {
  const json before = made_report(base_rows());
  json after = before;
  after["memory"]["ranks"][0]["peak_bytes"] = 7000;
  after["memory"]["ranks"][0]["at_peak"]["activation_bytes"] = 5000;
  after["simulated"]["links"][0]["busy_us"] = 1.5;
  after["simulated"]["programs"][1]["hash"] = "cc";
  after["simulated"]["coverage"]["estimated"] = {"sort"};
  const RunDiff diff = diff_runs(made_file(before, {{"model.num_layers", "2"}, {"seed", "1"}}), made_file(after, {{"model.num_layers", "3"}, {"seed", "1"}, {"model.new", "x"}}));
  EXPECT_FALSE(diff.equal());
  EXPECT_EQ(diff.step_change_ps(), 0);
  EXPECT_EQ(diff.settings, (std::vector<SettingChange>{{"model.num_layers", "2", "3"}, {"model.new", "absent", "x"}}));
  EXPECT_EQ(diff.memory_place_before, "rank 1, backward");
  EXPECT_EQ(diff.memory_place_after, "rank 0, backward");
  EXPECT_EQ(diff.links.rows.at(0).change(), 500'000);
  const std::string text = diff_text(diff, 10);
  for (const char* part : {"Programs: 1 in both, 1 only before, 1 only after", "newly estimated: sort", "model.num_layers", "rank 1, backward → rank 0, backward"}) EXPECT_THAT(text, HasSubstr(part));
}

TEST(RunDiff, WithoutAttributionThePartsExplainAndTheRestIsSaid) {
  json before = made_report(base_rows()), after = before;
  for (json* report : {&before, &after}) (*report)["simulated"].erase("attribution");
  after["simulated"]["step_time_ps"] = 13'510 + 1000;
  for (json& r : after["simulated"]["breakdown"]) {
    r["total_ps"] = 14'510;
    r["bubble_ps"] = r["bubble_ps"].get<std::int64_t>() + 900;
    r["other_ps"] = 100;
  }
  const RunDiff diff = diff_runs(made_file(before), made_file(after));
  EXPECT_FALSE(diff.attributed);
  EXPECT_EQ(diff.step_change_ps(), 1000);
  EXPECT_EQ(diff.rank_before, 1) << "the busiest rank";
  EXPECT_EQ(diff.unexplained_ps, 100);
  EXPECT_THAT(first_cause(diff), HasSubstr("bubble"));
  EXPECT_THAT(diff_text(diff, 10), HasSubstr("Not both reports have `attribution`"));
}

TEST(RunDiff, TopHidesRowsButCountsThem) {
  std::mt19937 random(8);
  const RunDiff diff = diff_runs(made_file(made_report(random_rows(random))), made_file(made_report(random_rows(random))));
  EXPECT_THAT(diff_text(diff, 2), HasSubstr("smaller ones"));
  EXPECT_THAT(diff_text(diff, 1000), testing::Not(HasSubstr("smaller ones")));
  EXPECT_THAT(diff_markdown(diff, 2), HasSubstr("| cause |"));
}

TEST(RunDiff, OfARunThatSimulatedNothingIsRefused) {
  json report = made_report(base_rows());
  report.erase("simulated");
  EXPECT_THROW(static_cast<void>(diff_runs(made_file(report), made_file(report))), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
