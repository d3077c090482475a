#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/traces/report/made_report.h"
#include "traces/report/perf_gate.h"
#include "traces/report/report_file.h"
#include "traces/report/report_page.h"
#include "traces/report/report_summary.h"
#include "traces/report/run_report.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json legal() {
  return made_report({row("forward", "model.layers.*.mlp", "mm", "compute", 600, 4),
                      row("forward", "", "all_reduce", "comm_tp", 100, 2),
                      row("backward", "lm_head", "mm", "compute", 300, 1)});
}

/// The error other than a ConfigError that a legal report makes its readers throw.
std::string misread(const ReportFile& file) {
  try {
    static_cast<void>(print_run_report(file.report));
    static_cast<void>(summary_text(file, summarize(file)));
    static_cast<void>(to_json(summarize(file)));
    static_cast<void>(columns_text({file, made_file(legal())}));
    static_cast<void>(diff_text(diff_runs(made_file(legal()), file), 10));
    static_cast<void>(make_baseline(file));
    static_cast<void>(report_page(file, nullptr));
  } catch (const ConfigError&) {
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class ReportFileTest : public testing::Test {
 protected:
  TemporaryDirectory folder;
  std::string error_of(const std::string& text) {
    std::ofstream(folder.path() / "report.json") << text;
    try {
      static_cast<void>(read_report_file(folder.path()));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(ReportFileTest, IsReadByFolderOrFileWithItsSettings) {
  EXPECT_EQ(error_of(legal().dump()), "");
  EXPECT_TRUE(read_report_file(folder.path()).settings.empty());
  std::ofstream(folder.path() / "hparams.yaml")
      << "name: x\nmodel:\n  num_layers: 4\n  optim:\n    betas: [0.9, 0.95]\n";
  const ReportFile file = read_report_file(folder.path() / "report.json");
  EXPECT_EQ(
      file.settings,
      (Settings{{"name", "x"}, {"model.num_layers", "4"}, {"model.optim.betas", "[0.9, 0.95]"}}));
}

TEST_F(ReportFileTest, EveryKeyThatIsMissingOrWrongIsNamed) {
  // Whatever is taken out or converted into a text, the error says where; nothing else escapes.
  const json report = legal();
  const json flat = report.flatten();
  int named = 0;
  for (const auto& [pointer, value] : flat.items()) {
    for (const bool remove : {true, false}) {
      json broken = report;
      const json::json_pointer at(pointer);
      if (remove) {
        json& parent = broken[at.parent_pointer()];
        parent.is_array() ? parent.erase(static_cast<std::size_t>(std::stoi(at.back())))
                          : static_cast<void>(parent.erase(at.back()));
      } else {
        broken[at] = value.is_string() ? json(1) : json("broken");
      }
      const std::string error = error_of(broken.dump());
      if (error.empty()) {
        EXPECT_EQ(misread(made_file(broken)), "") << pointer;
        continue;
      }
      ++named;
      EXPECT_THAT(error, HasSubstr("report.json")) << pointer;
    }
  }
  EXPECT_GT(named, 100);
  json broken = report;
  broken["simulated"]["breakdown"][1].erase("bubble_ps");
  EXPECT_THAT(error_of(broken.dump()),
              HasSubstr("simulated.breakdown[1].bubble_ps: expected an integer, got nothing"));
  for (const char* key : {"tokens_per_step", "num_microbatches", "world_size", "nodes"}) {
    broken = report;
    broken[key] = 0;
    EXPECT_THAT(error_of(broken.dump()),
                HasSubstr(std::string(key) + ": expected an integer above 0, got 0"));
  }
}

TEST_F(ReportFileTest, OtherDocumentsAreRefused) {
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of(legal().dump().substr(0, 500)), HasSubstr("cut off"));
  EXPECT_THAT(error_of("[1, 2]"), HasSubstr("trellis.run_report/1"));
  json other = legal();
  other["schema"] = "trellis.run_report/2";
  EXPECT_THAT(error_of(other.dump()), HasSubstr("\"trellis.run_report/2\""));
}

TEST(ReportSummary, SaysWhatBoundsAPhaseAndHowMuchIsUsed) {
  const ReportSummary summary = summarize(made_file(legal()));
  ASSERT_EQ(summary.phases.size(), 2u);
  EXPECT_EQ(summary.phases[0].phase, "forward");
  EXPECT_EQ(summary.phases[0].ps, 700);
  EXPECT_EQ(summary.phases[0].kind, "compute");
  EXPECT_EQ(summary.phases[0].largest_ps, 600);
  EXPECT_EQ(summary.operators.at(0).name, "mm (compute)");
  EXPECT_EQ(summary.operators.at(0).ps, 900);
  EXPECT_EQ(summary.operators.at(0).count, 5);
  ASSERT_TRUE(summary.hfu);
  EXPECT_DOUBLE_EQ(*summary.hfu, 1.1e6 / (1000e-12 * 1e12));
}

TEST(ReportSummary, HfuNeedsTheFlopsOfAllRanks) {
  json report = legal();
  report["simulated"]["breakdown"][0]["represents"] = 8;
  EXPECT_TRUE(summarize(made_file(report)).hfu);
  report["simulated"]["coverage"]["lowered_flops"] = 200000;
  EXPECT_FALSE(summarize(made_file(report)).hfu) << "only the representatives were counted";
}

TEST(ReportSummary, AnMfuAboveOneIsAnError) {
  json report = legal();
  report["mfu"] = 1.5;
  EXPECT_THROW(static_cast<void>(summarize(made_file(report))), ConfigError);
}

TEST(ReportSummary, ColumnsHaveEveryRunAndPart) {
  json other = legal();
  other["simulated"]["breakdown"][0]["vector_ps"] = 5;
  const std::string text = columns_text(
      {made_file(legal(), {}, "first/report.json"), made_file(other, {}, "second/report.json")});
  for (const char* part : {"first", "second", "matmul", "vector", "MFU", "peak memory", "25.0 %"})
    EXPECT_THAT(text, HasSubstr(part));
}

}  // namespace
}  // namespace trellis::analysis
