#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/traces/report/made_report.h"
#include "traces/report/perf_gate.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json report_of(std::int64_t mm_ps, std::int64_t peak = 6000) {
  json report = made_report({row("forward", "model.layers.*.mlp", "mm", "compute", mm_ps),
                             row("forward", "", "all_reduce", "comm_tp", 1000)});
  report["memory"]["ranks"][1]["peak_bytes"] = peak;
  report["memory"]["ranks"][1]["at_peak"]["activation_bytes"] = peak - 3000;
  return report;
}

GateResult gate(const json& before, const json& after, const std::string& time = "0%",
                const std::string& memory = "0%") {
  return judge(made_file(before), made_file(after),
               {parse_limit("--a", time), parse_limit("--b", memory)});
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Limit, IsReadExactlyOrRefused) {
  EXPECT_EQ(parse_limit("--a", "2%").millionths, 20'000);
  EXPECT_EQ(parse_limit("--a", "0.5 %").millionths, 5'000);
  EXPECT_EQ(parse_limit("--a", "0.0001%").millionths, 1);
  EXPECT_EQ(parse_limit("--a", "0.5%").text(), "0.5 %");
  for (const char* bad :
       {"", "2", "%", "-1%", "2.%", ".5%", "0.00001%", "two%", "1e3%", "99999999%", "1.2.3%"})
    EXPECT_THROW(static_cast<void>(parse_limit("--a", bad)), ConfigError) << bad;
}

TEST(Limit, HoldsToThePicosecond) {
  const Limit limit = parse_limit("--a", "2%");
  EXPECT_TRUE(limit.passed(1'000'000'000'000'000'000, 1'020'000'000'000'000'000));
  EXPECT_FALSE(limit.passed(1'000'000'000'000'000'000, 1'020'000'000'000'000'001));
  EXPECT_TRUE(parse_limit("--a", "0%").passed(5, 5));
  EXPECT_FALSE(parse_limit("--a", "0%").passed(5, 6));
}

TEST(PerfGate, PassesWhatIsEqualAndNamesWhatIsSlower) {
  EXPECT_TRUE(gate(report_of(99'000), report_of(99'000)).passed());
  const GateResult slower = gate(report_of(99'000), report_of(100'000), "0.5%");
  EXPECT_FALSE(slower.passed());
  EXPECT_THAT(gate_text(slower),
              HasSubstr("Largest part of the change: forward · model.layers.*.mlp · mm (compute)"));
  EXPECT_TRUE(gate(report_of(99'000), report_of(100'000), "1%").passed());
  const GateResult one_more = gate(report_of(99'000), report_of(99'001));
  EXPECT_FALSE(one_more.passed()) << "a picosecond is a change";
  EXPECT_FALSE(to_json(one_more).at("passed").get<bool>());
}

TEST(PerfGate, NamesTheMemoryThatGrew) {
  const GateResult result = gate(report_of(99'000), report_of(99'000, 6100), "0%", "1%");
  EXPECT_FALSE(result.passed());
  EXPECT_THAT(gate_text(result), HasSubstr("Largest part of the growth: activation +100 B"));
  EXPECT_TRUE(gate(report_of(99'000), report_of(99'000, 6100), "0%", "2%").passed());
}

TEST(PerfGate, BeginsWithTheRootCauseAndJudgesOtherConfigurationsWhenAskedTo) {
  json before = report_of(99'000), after = report_of(120'000);
  before["machine"] = {{"hardware", {{"core.dma.engine_rate", "20 GB/s"}}},
                       {"slow", json::array()}};
  after["machine"] = {{"hardware", {{"core.dma.engine_rate", "10 GB/s"}}}, {"slow", json::array()}};
  const std::string text = gate_text(gate(before, after));
  const auto root = text.find(
                 "Root cause: number of the machine core.dma.engine_rate: 20 GB/s → 10 GB/s"),
             part = text.find("Largest part of the change");
  ASSERT_NE(root, std::string::npos);
  EXPECT_LT(root, part);
  EXPECT_EQ(to_json(gate(before, after)).at("root_causes").size(), 1u);
  const ReportFile base = made_file(report_of(99'000), {{"model.hidden_size", "8"}}),
                   run = made_file(report_of(120'000), {{"model.hidden_size", "16"}});
  EXPECT_THAT(error_of([&] { static_cast<void>(judge(base, run, {})); }),
              HasSubstr("--allow-config-change"));
  const GateResult allowed = judge(base, run, {}, /*allow_config_change=*/true);
  EXPECT_FALSE(allowed.passed());
  EXPECT_THAT(gate_text(allowed), HasSubstr("Root cause: setting model.hidden_size: 8 → 16"));
  EXPECT_THAT(gate_text(allowed), HasSubstr("forward · model.layers.*.mlp · mm (compute)"));
}

/// A baseline of before reports named their model is of version 1.
TEST(PerfGate, NamesAnOlderModel) {
  json before = report_of(99'000), after = report_of(100'000);
  const json numbers = {{"core.dma.engine_rate", "20 GB/s"}};
  before["machine"] = {{"hardware", numbers}, {"slow", json::array()}};
  after["machine"] = {{"model", "2"}, {"hardware", numbers}, {"slow", json::array()}};
  const GateResult older = gate(before, after);
  EXPECT_THAT(gate_text(older), HasSubstr("Root cause: version of the model: 1 → 2"));
  EXPECT_EQ(to_json(older).at("diff").at("model").at(0).at("before"), "1");
  before["machine"]["model"] = "2";
  EXPECT_THAT(gate_text(gate(before, after)), testing::Not(HasSubstr("version of the model")));
}

TEST(PerfGate, EachLimitIsACheckWithItsProblem) {
  const std::vector<GateCheck> checks = gate_checks(gate(report_of(99'000), report_of(120'000)));
  ASSERT_EQ(checks.size(), 3u);
  ASSERT_TRUE(checks[0].problem.has_value());
  EXPECT_EQ(checks[0].problem->key, "step time");
  EXPECT_EQ(checks[0].problem->expected, "at most 0 % above 100.0 ns");
  EXPECT_EQ(checks[0].problem->got, "121.0 ns (+21.0 %)");
  EXPECT_FALSE(checks[1].problem.has_value());
}

TEST(PerfGate, AGainAsksForANewBaseline) {
  const GateResult result = gate(report_of(99'000), report_of(90'000), "2%");
  EXPECT_TRUE(result.passed());
  EXPECT_THAT(gate_text(result), HasSubstr("--update-baseline"));
  EXPECT_FALSE(gate(report_of(99'000), report_of(98'500), "2%").improved());
}

TEST(PerfGate, MarkdownIsATableWithTheDiffBelow) {
  const std::string text = gate_markdown(gate(report_of(99'000), report_of(120'000)));
  EXPECT_THAT(text, HasSubstr("### Simulated step: gate FAILED"));
  EXPECT_THAT(text, HasSubstr("| step time | 100.0 ns |"));
  EXPECT_THAT(text, HasSubstr("<details>"));
}

TEST(PerfGate, RefusesToCompareOtherRuns) {
  const json base = report_of(1000);
  const auto refusal = [&](const char* key, const json& value, bool simulated = false) {
    json other = base;
    (simulated ? other["simulated"] : other)[key] = value;
    return error_of([&] { static_cast<void>(gate(base, other)); });
  };
  EXPECT_THAT(refusal("instance", "trn2.48xlarge"), HasSubstr("instance"));
  EXPECT_THAT(refusal("tensor_model_parallel_size", 2), HasSubstr("tensor_model_parallel_size"));
  EXPECT_THAT(refusal("parameters", 1001), HasSubstr("parameters"));
  EXPECT_THAT(refusal("evidence", "spec", true), HasSubstr("evidence"));
  EXPECT_THAT(refusal("interrupted", true), HasSubstr("interrupted"));
  const auto settings = [&](const char* value) {
    return made_file(base, {{"model.hidden_size", value}, {"seed", value}});
  };
  EXPECT_THAT(error_of([&] { static_cast<void>(judge(settings("8"), settings("16"), {})); }),
              HasSubstr("model.hidden_size"));
  const std::string seeds =
      error_of([&] { static_cast<void>(judge(settings("8"), settings("16"), {})); });
  EXPECT_THAT(seeds, testing::Not(HasSubstr("seed"))) << "a seed is no part of what is simulated";
}

TEST(PerfGate, ABaselineIsWhatWasWritten) {
  TemporaryDirectory folder;
  const std::filesystem::path file = folder.path() / "base.json";
  ReportFile run = made_file(report_of(4711), {{"model.hidden_size", "8"}, {"seed", "1"}});
  run.report["host"] = {{"wall_s", 1.5}};  // reports of older versions
  std::ofstream(file) << make_baseline(run).dump(1);
  const ReportFile again = read_baseline(file);
  EXPECT_EQ(again.settings, (Settings{{"model.hidden_size", "8"}}));
  EXPECT_FALSE(again.report.contains("host")) << "it must not depend on the host";
  EXPECT_TRUE(judge(again, run, {}).passed());
  EXPECT_TRUE(judge(again, run, {}).diff.equal());
}

TEST(PerfGate, ABadBaselineIsNamed) {
  TemporaryDirectory folder;
  const std::filesystem::path file = folder.path() / "base.json";
  EXPECT_THAT(error_of([&] { static_cast<void>(read_baseline(file)); }),
              HasSubstr("--update-baseline"));
  const std::string good = make_baseline(made_file(report_of(4711))).dump();
  for (const std::string& text : {good.substr(0, good.size() / 2), std::string("[]"),
                                  std::string("{}"), report_of(1).dump(), std::string()}) {
    std::ofstream(file) << text;
    EXPECT_THAT(error_of([&] { static_cast<void>(read_baseline(file)); }), HasSubstr("base.json"))
        << text.substr(0, 30);
  }
  json other = json::parse(good);
  other["schema"] = "trellis.gate_baseline/2";
  std::ofstream(file) << other.dump();
  EXPECT_THAT(error_of([&] { static_cast<void>(read_baseline(file)); }),
              HasSubstr("trellis.gate_baseline/1"));
  json nothing_simulated = json::parse(good);
  nothing_simulated["report"].erase("simulated");
  std::ofstream(file) << nothing_simulated.dump();
  EXPECT_THAT(error_of([&] { static_cast<void>(read_baseline(file)); }),
              HasSubstr("report.simulated: missing"));
}

}  // namespace
}  // namespace trellis::analysis
