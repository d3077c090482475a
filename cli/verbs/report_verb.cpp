#include <algorithm>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/options/not_empty.h"
#include "cli/output/output_files.h"
#include "cli/output/parquet_file.h"
#include "cli/output/run_page.h"
#include "cli/verbs/verbs.h"
#include "traces/report/measured_step.h"
#include "traces/report/metrics_table.h"
#include "traces/report/report_file.h"
#include "traces/report/report_summary.h"
#include "traces/report/run_report.h"
#include "traces/report/timed_columns.h"

namespace trellis::cli {

namespace {

using analysis::ReportFile;

struct ReportOptions {
  std::vector<std::string> runs;
  std::string html, metrics;
  bool json = false;
};

/// The document with what follows from it, under `summary`.
nlohmann::json with_summary(const ReportFile& file) {
  nlohmann::json document = file.report;
  if (document.contains("simulated"))
    document["summary"] = analysis::to_json(analysis::summarize(file));
  return document;
}

void report_one(const ReportFile& file, bool json_output) {
  if (json_output) {
    std::cout << with_summary(file).dump(1) << "\n";
    return;
  }
  std::cout << analysis::print_run_report(file.report);
  if (file.report.contains("simulated"))
    std::cout << analysis::summary_text(file, analysis::summarize(file));
}

void report_columns(const std::vector<ReportFile>& files, bool json_output) {
  if (!json_output) {
    const bool any_measured = std::ranges::any_of(
        files, [](const ReportFile& file) { return file.report.contains("measured"); });
    std::cout << (any_measured ? analysis::timed_columns_text(files)
                               : analysis::columns_text(files));
    return;
  }
  nlohmann::json documents = nlohmann::json::array();
  for (const ReportFile& file : files) documents.push_back(with_summary(file));
  std::cout << nlohmann::json({{"schema", "trellis.run_reports/1"}, {"runs", std::move(documents)}})
                   .dump(1)
            << "\n";
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("report",
                         "what a finished run said: breakdown that adds up, bottlenecks, MFU and "
                         "HFU, memory, coverage; several runs as columns");
  auto options = std::make_shared<ReportOptions>();
  verb->add_option("runs", options->runs,
                   "a run's folder or its report.json; several: one column each")
      ->required();
  verb->add_flag("--json", options->json,
                 "the document (schema trellis.run_report/1) with `summary` "
                 "(trellis.report_summary/1); of several runs trellis.run_reports/1");
  verb->add_option("--html", options->html,
                   "also one page of a single run, which needs no network: schedule, breakdown, "
                   "memory, links, sortable tables")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_option("--metrics", options->metrics,
                   "also every logged scalar of the runs as Parquet (schema trellis.metrics/1): a "
                   "row for each run and step")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->footer(
      "Examples:\n  trellis report nemo_experiments/quickstart/2026-01-01_12-00-00\n"
      "  trellis report runs/emulated runs/measured       where the model is wrong\n"
      "  trellis report runs/tp8 --html tp8.html\n"
      "  trellis report runs/tp8 runs/tp16 runs/tp32 --metrics metrics.parquet\n"
      "Times are simulated milliseconds, or of a device's clock (Measured step); shares are of the "
      "simulated step. What explains a change: "
      "trellis diff A B.\n"
      "Parts of a rank's step, which add up to it: matmul: the Tensor engine is busy; other "
      "compute: Vector, Scalar or GpSimd, or only DMA, without it;\n"
      "TP, PP, DP comm: the rank waits while bytes move (exposed); bubble: it waits for another "
      "stage, or for the last rank at the end; optimizer: the\n"
      "optimizer's programs; waiting for the host: the next program is not recorded or launched "
      "yet; other: gaps between instructions. Evidence: spec, "
      "measured, calibrated, estimated: the worst number used.");
  verb->callback([options, &exit_code] {
    std::vector<ReportFile> files;
    for (const std::string& run : options->runs) files.push_back(analysis::read_report_file(run));
    if (!options->html.empty() && files.size() != 1)
      throw ConfigError("--html: a page shows one run: expected one, got " +
                        std::to_string(files.size()));
    const trainer::TableRequest metrics =
        options->metrics.empty()
            ? trainer::TableRequest{}
            : analysis::metrics_table({options->runs.begin(), options->runs.end()});
    OutputFiles outputs({{"--html", options->html}, {"--metrics", options->metrics}});
    const ParquetWriter parquet(options->metrics);
    outputs.write("--html", [&] { return run_page(files[0]); });
    outputs.write("--metrics", [&] { return parquet.content(metrics); });
    files.size() == 1 ? report_one(files[0], options->json) : report_columns(files, options->json);
    std::cout << std::flush;
    outputs.finish();
    exit_code = 0;
  });
}

}  // namespace trellis::cli
