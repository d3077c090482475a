#include <cstdlib>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "cli/options/ci_options.h"
#include "cli/options/not_empty.h"
#include "cli/verbs/verbs.h"
#include "traces/report/measured_step.h"
#include "traces/report/perf_gate.h"

namespace trellis::cli {
namespace {

struct GateOptions {
  std::string baseline, run, max_regression = "2%", max_memory_growth = "2%", summary;
  bool update = false, json = false, allow_config_change = false;
  analysis::CiFiles ci;
};

/// "-" adds to the job summary of GitHub Actions, which several steps share; a separate file is
/// written again.
void write_summary(const std::string& to, const std::string& markdown) {
  if (to != "-") return write_file_atomically(to, markdown);
  const char* job_summary = std::getenv("GITHUB_STEP_SUMMARY");
  if (job_summary == nullptr || *job_summary == '\0') {
    throw ConfigError(
        "--summary -: expected the environment variable GITHUB_STEP_SUMMARY, which GitHub Actions "
        "sets; elsewhere name a file: --summary gate.md");
  }
  FileStream file(job_summary, FileStream::Mode::kAppend);
  file << markdown;
  file.check();
}

int update(const GateOptions& options, const analysis::ReportFile& run) {
  const nlohmann::json baseline = analysis::make_baseline(run);
  write_file_atomically(options.baseline, baseline.dump(1) + "\n");
  if (!options.summary.empty())
    write_summary(options.summary, "### New baseline of the step\n\n`" + options.baseline +
                                       "` is now `" + run.path.string() + "`\n");
  const std::string step =
      std::to_string(analysis::timed_step(baseline.at("report"), options.baseline).ps) + " ps";
  if (options.json) {
    std::cout << nlohmann::json({{"schema", "trellis.gate/1"},
                                 {"baseline", options.baseline},
                                 {"run", run.path.string()},
                                 {"updated", true}})
                     .dump(1)
              << "\n";
  } else {
    std::cout << "Baseline " << options.baseline << " is now " << run.path.string() << ": step "
              << step << "\n";
  }
  return static_cast<int>(ExitCode::kOk);
}

/// Why the two cannot be compared is an answer too: the files for continuous integration have it.
analysis::GateResult judged(const GateOptions& options, const analysis::ReportFile& run,
                            const analysis::GateLimits& limits) {
  try {
    return analysis::judge(analysis::read_baseline(options.baseline), run, limits,
                           options.allow_config_change);
  } catch (const ConfigError& error) {
    options.ci.write("trellis gate",
                     {{options.run, parse_problems(error.what(), options.run), /*judged=*/false}});
    throw;
  }
}

int gate(const GateOptions& options) {
  const analysis::GateLimits limits{
      analysis::parse_limit("--max-regression", options.max_regression),
      analysis::parse_limit("--max-memory-growth", options.max_memory_growth)};
  const analysis::ReportFile run = analysis::read_report_file(options.run);
  if (options.update) return update(options, run);
  const analysis::GateResult result = judged(options, run, limits);
  std::vector<analysis::Check> checks;
  for (const analysis::GateCheck& check : analysis::gate_checks(result)) {
    checks.push_back({check.name, check.problem ? std::vector<Problem>{*check.problem}
                                                : std::vector<Problem>{}});
  }
  options.ci.write("trellis gate", checks);
  if (!options.summary.empty()) write_summary(options.summary, gate_markdown(result));
  std::cout << (options.json ? analysis::to_json(result).dump(1) + "\n" : gate_text(result));
  return static_cast<int>(result.passed() ? ExitCode::kOk : ExitCode::kPerfGate);
}

}  // namespace

void add_gate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("gate",
                                      "for continuous integration: simulated step time and "
                                      "modelled memory against a baseline file, without noise; of "
                                      "a device's clock with its noise");
  auto options = std::make_shared<GateOptions>();
  verb->add_option("run", options->run, "a run's folder or its report.json")->required();
  verb->add_option("--baseline", options->baseline,
                   "made by --update-baseline; keep it under version control")
      ->required()
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_option("--max-regression", options->max_regression,
                   "of the step time; picoseconds compare exactly, so 0% works")
      ->capture_default_str();
  verb->add_option("--max-memory-growth", options->max_memory_growth,
                   "of the fullest rank's peak, allocated and reserved, in bytes")
      ->capture_default_str();
  verb->add_flag("--update-baseline", options->update,
                 "take this run as the baseline instead of judging it");
  verb->add_flag(
      "--allow-config-change", options->allow_config_change,
      "compare runs of other configurations too: the time per cause, and the keys that changed");
  verb->add_option("--summary", options->summary,
                   "Markdown into FILE; -: appended to $GITHUB_STEP_SUMMARY")
      ->type_name("FILE");
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.gate/1)");
  add_ci_options(*verb, options->ci);
  verb->footer(
      "Examples:\n  trellis simulate examples/quickstart.yaml exp_manager.explicit_log_dir=run\n"
      "  trellis gate run --baseline perf/quickstart.json --update-baseline          once, and "
      "whenever a change is wanted\n"
      "  trellis gate run --baseline perf/quickstart.json --max-regression 0.5% --summary - "
      "--junit gate.xml\n"
      "A result begins with its root cause: a slowed part (--slow), a number of the machine "
      "(--set), a setting, or other programs; then come the parts of the step.\n"
      "Exit code 0: within the limits; 6: past one, with the root cause; 2: the two cannot be "
      "compared (another schema; without --allow-config-change another instance, configuration or "
      "evidence).");
  verb->callback([options, &exit_code] { exit_code = gate(*options); });
}

}  // namespace trellis::cli
