#include <gtest/gtest.h>

#include "analysis/sweep/journal.h"
#include "analysis/sweep/row.h"
#include "base/json/json_text.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/traces/report/made_report.h"
#include "traces/report/perf_gate.h"
#include "traces/report/report_page.h"
#include "traces/report/report_summary.h"
#include "traces/report/run_diff.h"
#include "traces/report/run_report.h"

/// Whatever a report, a baseline or the journal of a sweep holds, who reads it gets texts without
/// control characters or a ConfigError.
namespace trellis::fuzz {
namespace {

/// No tool that gets the text may see controls, forged lines or an element of HTML.
void expect_fit(const std::string& text) {
  if (const std::string why = unfit(text); !why.empty()) throw std::runtime_error(why);
}

void read_whole_report(const std::filesystem::path& file, const analysis::ReportFile& other) {
  const analysis::ReportFile run = analysis::read_report_file(file);
  expect_fit(analysis::print_run_report(run.report));
  if (!run.report.contains("simulated")) return;
  const analysis::ReportSummary summary = analysis::summarize(run);
  expect_fit(analysis::summary_text(run, summary));
  (void)to_json(summary).dump();
  expect_fit(analysis::columns_text({other, run}));
  const analysis::RunDiff diff = analysis::diff_runs(other, run);
  expect_fit(analysis::diff_text(diff, 10));
  expect_fit(analysis::diff_markdown(diff, 10));
  (void)to_json(diff).dump();
  const std::string page = analysis::report_page(run, nullptr);
  if (page.find("</script><b>") != std::string::npos)
    throw std::runtime_error("a text ends the page's script");
  const analysis::GateResult judged = analysis::judge(other, run, {});
  expect_fit(analysis::gate_text(judged));
  expect_fit(analysis::gate_markdown(judged));
}

TEST(Reports, WhateverIsInAReport) {
  const TemporaryDirectory directory;
  std::mt19937 random(1);
  const nlohmann::json report = analysis::made_report(analysis::random_rows(random));
  const std::filesystem::path file = directory.write("run/report.json", report.dump());
  const analysis::ReportFile other = analysis::made_file(report);
  fuzz_files({file}, [&] { read_whole_report(file, other); }, &mutate_json);
}

TEST(Reports, WhateverIsInABaselineOfTheGate) {
  const TemporaryDirectory directory;
  std::mt19937 random(1);
  const analysis::ReportFile run =
      analysis::made_file(analysis::made_report(analysis::random_rows(random)));
  const std::filesystem::path file =
      directory.write("baseline.json", analysis::make_baseline(run).dump());
  fuzz_files(
      {file},
      [&] {
        expect_fit(analysis::gate_text(analysis::judge(analysis::read_baseline(file), run, {})));
      },
      &mutate_json);
}

/// A journal of four candidates.
std::filesystem::path write_journal(const std::filesystem::path& folder,
                                    const nlohmann::json& facts) {
  using namespace analysis;
  SweepSpace space;
  space.request.config = "model.yaml";
  space.request.overrides = {"model.num_layers=2"};
  space.request.nodes = {1, 2};
  space.candidates.resize(4);
  SweepJournal journal(folder, space, {}, facts);
  for (std::size_t i = 0; i < 4; ++i) {
    SweepRow row;
    row.index = i;
    row.status = i == 0 ? SweepStatus::kOom : SweepStatus::kOk;
    if (i > 0)
      row.step = SimulatedStep{1000, 1.5, 0.25, 4096, "matmul", 500, "estimated", 1.2, false, ""};
    journal.append(result_json(row));
  }
  return folder / "journal.jsonl";
}

TEST(Reports, WhateverIsInAJournal) {
  const TemporaryDirectory directory;
  const nlohmann::json facts = {{"--gbs", "2"}, {"model.num_layers", "2"}};
  const std::filesystem::path file = write_journal(directory.path() / "sweep", facts);
  fuzz_files(
      {file},
      [&] {
        const JournalFile journal = analysis::read_sweep_journal(file.parent_path());
        (void)analysis::request_of(journal);
        analysis::SweepRow row;
        for (const nlohmann::json& result : analysis::merge_journals({journal}, facts))
          apply_result(result, row);
      },
      &mutate_json_lines);
}

TEST(Reports, AHeadThatOccursTwiceInAJournalIsNamed) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = write_journal(directory.path() / "sweep", {{"--gbs", "2"}});
  const std::string text = read_all(file);
  put(file, text.substr(0, text.find('\n') + 1) + text);
  try {
    (void)analysis::read_sweep_journal(file.parent_path());
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(
        std::string(error.what())
            .starts_with(file.string() +
                         ":2: expected the result of a candidate, got the head of a journal again"))
        << error.what();
  }
}

}  // namespace
}  // namespace trellis::fuzz
