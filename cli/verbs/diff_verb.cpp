#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/options/number_range.h"
#include "cli/verbs/verbs.h"
#include "traces/report/run_diff.h"

namespace trellis::cli {

void add_diff(CLI::App& app, int& exit_code) {
  struct DiffOptions {
    std::string before, after;
    int top = 10;
    bool json = false;
  };
  CLI::App* verb = app.add_subcommand("diff",
                                      "why a step is faster or slower than another: by "
                                      "part, phase, component, operator; memory, links, settings");
  auto options = std::make_shared<DiffOptions>();
  verb->add_option("before", options->before, "a run's folder or its report.json")->required();
  verb->add_option("after", options->after, "another one")->required();
  verb->add_option("--top", options->top, "rows of each table at most")
      ->capture_default_str()
      ->check(at_least(1));
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.diff/1), all rows");
  verb->footer(
      "Examples:\n  trellis simulate examples/quickstart.yaml exp_manager.explicit_log_dir=runs/a\n"
      "  trellis simulate examples/quickstart.yaml exp_manager.explicit_log_dir=runs/b "
      "distributed_strategy.sequence_parallel=false\n"
      "  trellis diff runs/a runs/b\n"
      "Rows are sorted by the size of their change. `kind`: compute, memory (waits for HBM), "
      "comm_tp/pp/dp/cp (exposed waits), bubble, optimizer, host, launch,\n"
      "other. Programs that are only in the second run miss a cache of compiled graphs of the "
      "first. Exit code 0 whether equal or not; `gate` judges.");
  verb->callback([options, &exit_code] {
    const analysis::RunDiff diff = analysis::diff_runs(analysis::read_report_file(options->before),
                                                       analysis::read_report_file(options->after));
    std::cout << (options->json ? analysis::to_json(diff).dump(1) + "\n"
                                : diff_text(diff, options->top));
    exit_code = 0;
  });
}

}  // namespace trellis::cli
