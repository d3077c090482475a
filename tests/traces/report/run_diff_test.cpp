#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/traces/report/made_report.h"
#include "traces/report/run_diff.h"
#include "traces/report/step_view.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json base_rows() {
  return {row("forward", "model.layers.*.mlp", "mm", "compute", 4000, 32),
          row("forward", "model.layers.*.mlp", "all_reduce", "comm_tp", 1000, 32),
          row("backward", "model.layers.*.mlp", "mm", "compute", 8000, 64),
          row("", "", "", "launch", 500), row("", "", "idle", "other", 10)};
}

TEST(RunDiff, TablesAddUpToTheChangeWhateverTheRows) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const RunDiff diff = diff_runs(made_file(made_report(random_rows(random))),
                                   made_file(made_report(random_rows(random))));
    ASSERT_TRUE(diff.attributed);
    EXPECT_EQ(diff.causes.change(), diff.step_change_ps());
    for (const DiffTable& table : diff.step)
      EXPECT_EQ(table.change(), diff.step_change_ps()) << table.title;
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
  const RunDiff named =
      diff_runs(made_file(made_report(base_rows())), made_file(made_report(rows)));
  EXPECT_EQ(named.unexplained_ps, 300);
  EXPECT_DOUBLE_EQ(named.explained(), 0.7);
  json report = made_report(base_rows());
  report["simulated"]["step_time_ps"] =
      report["simulated"]["step_time_ps"].get<std::int64_t>() + 77;
  EXPECT_EQ(diff_runs(made_file(made_report(base_rows())), made_file(report)).unexplained_ps, 77)
      << "a step that its rows do not add up to";
}

TEST(RunDiff, OfARunWithItselfIsEqualWhateverTheFolder) {
  const json report = made_report(base_rows());
  const RunDiff diff = diff_runs(
      made_file(report, {{"exp_manager.explicit_log_dir", "a"}, {"model.num_layers", "2"}}),
      made_file(report, {{"exp_manager.explicit_log_dir", "b"}, {"model.num_layers", "2"}},
                "other/report.json"));
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
  const RunDiff diff =
      diff_runs(made_file(before, {{"model.num_layers", "2"}, {"seed", "1"}}),
                made_file(after, {{"model.num_layers", "3"}, {"seed", "1"}, {"model.new", "x"}}));
  EXPECT_FALSE(diff.equal());
  EXPECT_EQ(diff.step_change_ps(), 0);
  EXPECT_EQ(diff.settings, (std::vector<SettingChange>{{"model.num_layers", "2", "3"},
                                                       {"model.new", "absent", "x"}}));
  EXPECT_EQ(diff.memory_place_before, "rank 0, backward")
      << "the same rank is compared, not another stage's";
  EXPECT_EQ(diff.memory_place_after, "rank 0, backward");
  EXPECT_EQ(diff.links.rows.at(0).change(), 500'000);
  const std::string text = diff_text(diff, 10);
  for (const char* part :
       {"Programs: 1 in both, 1 only before, 1 only after", "newly estimated: sort",
        "model.num_layers", "Before, another rank was the fullest: rank 1, backward"})
    EXPECT_THAT(text, HasSubstr(part));
}

/// As base_rows, for a rank of the other stage: a head, no attention.
json head_rows() {
  return {row("forward", "lm_head", "mm", "compute", 6000, 8),
          row("backward", "lm_head", "mm", "compute", 6500, 8),
          row("forward", "", "send_recv", "bubble", 1010)};
}

json with_other_rank(json report, int rank, const json& rows) {
  report["simulated"]["attribution"]["other_ranks"] = {{{"rank", rank}, {"rows", rows}}};
  return report;
}

json with_machine(json report, const json& hardware, const json& slow = json::array()) {
  report["machine"] = {{"hardware", hardware}, {"slow", slow}};
  return report;
}

TEST(RunDiff, RanksOfOneStageAreComparedWhicheverEndsLast) {
  // Stage 1 ended last before, stage 0 does so now because its MLP takes longer.
  json slower = base_rows();
  slower[0]["time_ps"] = 5000;
  json before = with_other_rank(made_report(head_rows()), 0, base_rows()),
       after = with_other_rank(made_report(slower), 1, head_rows());
  before["simulated"]["attribution"]["rank"] = 1;
  for (const std::size_t rank : {0U, 1U}) {  // stage 1 waits for what stage 0 does more
    const std::int64_t bubble = before["simulated"]["breakdown"][rank]["bubble_ps"];
    after["simulated"]["breakdown"][rank]["bubble_ps"] = bubble + (rank == 1 ? 1000 : 0);
  }
  const RunDiff diff = diff_runs(made_file(before), made_file(after));
  EXPECT_EQ(diff.rank_before, 0);
  EXPECT_EQ(diff.rank_after, 0);
  EXPECT_EQ(diff.stage, 0);
  for (const DiffRow& r : diff.causes.rows) EXPECT_THAT(r.name, testing::Not(HasSubstr("lm_head")));
  EXPECT_THAT(first_cause(diff), HasSubstr("forward · model.layers.*.mlp · mm (compute)"));
  EXPECT_THAT(diff_text(diff, 10), HasSubstr("explained by rank 0 (stage 0)"));
}

TEST(RunDiff, ARankThatRunsAloneNowIsComparedWithTheClassThatHeldIt) {
  json before = made_report(base_rows()), after = made_report(base_rows());
  for (json* report : {&before, &after}) {
    (*report)["world_size"] = 8;
    (*report)["simulated"]["breakdown"][1]["rank"] = 4;
  }
  json slow = base_rows();
  slow[0]["time_ps"] = 5000;
  json row_of_three = after["simulated"]["breakdown"][0];
  row_of_three["rank"] = 3;
  row_of_three["bubble_ps"] = 0;
  after["simulated"]["breakdown"].push_back(row_of_three);
  after["simulated"]["step_time_ps"] = 14'510;
  after = with_other_rank(after, 3, slow);
  const RunDiff diff = diff_runs(made_file(before), made_file(after));
  EXPECT_EQ(diff.rank_before, 0);
  EXPECT_EQ(diff.rank_after, 3) << "it does more own work; the others wait";
  EXPECT_EQ(diff.causes.rows.front().change(), 1000);
}

TEST(RunDiff, TheRootCauseIsWhatWasAskedFor) {
  const json base = with_machine(made_report(base_rows()),
                                 {{"core.dma.engine_rate", "20 GB/s"}, {"hbm.rate", "1 TB/s"}});
  json rows = base_rows();
  rows[0]["time_ps"] = 5200;
  const auto causes = [&](const json& hardware, const json& slow, const Settings& settings) {
    return root_causes(
        diff_runs(made_file(base, {{"model.num_layers", "2"}, {"seed", "1"}}),
                  made_file(with_machine(made_report(rows), hardware, slow), settings)));
  };
  const json same = base["machine"]["hardware"];
  const Settings settings{{"model.num_layers", "2"}, {"seed", "1"}};
  EXPECT_EQ(causes(same, {"core:3=1.3"}, settings),
            std::vector<std::string>{"Root cause: slowed part core:3: 1 → 1.3 times as long"});
  EXPECT_EQ(causes({{"core.dma.engine_rate", "10 GB/s"}, {"hbm.rate", "1 TB/s"}}, json::array(),
                   settings),
            std::vector<std::string>{
                "Root cause: number of the machine core.dma.engine_rate: 20 GB/s → 10 GB/s"});
  EXPECT_EQ(causes(same, json::array(), {{"model.num_layers", "3"}, {"seed", "2"}}),
            std::vector<std::string>{"Root cause: setting model.num_layers: 2 → 3"})
      << "a seed decides nothing";
  EXPECT_EQ(causes(same, json::array(), settings),
            std::vector<std::string>{"Root cause: machine, configuration and programs are the "
                                     "same: the simulator itself changed"});
  const RunDiff slow =
      diff_runs(made_file(base),
                made_file(with_machine(made_report(rows), same, {"link:node0.chip0.east=4"})));
  const std::string text = diff_text(slow, 10);
  EXPECT_EQ(text.rfind("Root cause: slowed part link:node0.chip0.east: 1 → 4", 0), 0u) << text;
  EXPECT_THAT(text, HasSubstr("Slowed parts"));
  EXPECT_EQ(to_json(slow).at("slow").at(0).at("key"), "link:node0.chip0.east");
  EXPECT_FALSE(diff_runs(made_file(base),
                         made_file(with_machine(made_report(base_rows()), same, {"core:0=2"})))
                   .equal());
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
  const RunDiff diff = diff_runs(made_file(made_report(random_rows(random))),
                                 made_file(made_report(random_rows(random))));
  EXPECT_THAT(diff_text(diff, 2), HasSubstr("smaller ones"));
  EXPECT_THAT(diff_text(diff, 1000), testing::Not(HasSubstr("smaller ones")));
  EXPECT_THAT(diff_markdown(diff, 2), HasSubstr("| cause |"));
}

/// All ranks together have more picoseconds than 64 bits hold.
TEST(StepView, ProgramsOfManyRanksAndDamagedTimesDoNotOverflow) {
  const auto seconds_of_rank = [](double us, std::int64_t launches, std::int64_t ranks) {
    const json step = {
        {"programs", {{{"name", "forward"}, {"device_time_us", us}, {"launches", launches}}}}};
    return static_cast<double>(program_time_by_phase(step, ranks).at(0).ps) * 1e-12;
  };
  EXPECT_DOUBLE_EQ(seconds_of_rank(60e6, 1'000'000, 1'000'000), 60);
  EXPECT_DOUBLE_EQ(seconds_of_rank(2.5, 4, 1), 10e-6);
  EXPECT_EQ(seconds_of_rank(1e300, 8, 1), 4e6);
  EXPECT_EQ(seconds_of_rank(-1e300, 8, 1), -4e6);
  EXPECT_EQ(picoseconds_of(2.5), 2'500'000);
  EXPECT_GT(picoseconds_of(1e300) - picoseconds_of(-1e300), 0);
}

TEST(RunDiff, OfARunThatSimulatedNothingIsRefused) {
  json report = made_report(base_rows());
  report.erase("simulated");
  EXPECT_THROW(static_cast<void>(diff_runs(made_file(report), made_file(report))), ConfigError);
}

TEST(DecidesTheStep, NoScheduleOfLearningRatesDoes) {
  EXPECT_TRUE(decides_the_step("model.num_layers"));
  EXPECT_TRUE(decides_the_step("model.optim.name"));
  EXPECT_FALSE(decides_the_step("model.optim.sched.max_steps"));
  EXPECT_FALSE(decides_the_step("trainer.max_steps"));
}

}  // namespace
}  // namespace trellis::analysis
