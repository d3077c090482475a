#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/activity.h"
#include "analysis/calibrate/calibrate_report.h"
#include "analysis/calibrate/measurements.h"
#include "cli/not_empty.h"
#include "cli/number_range.h"
#include "cli/output_files.h"
#include "cli/verbs.h"

namespace trellis::cli {
namespace {

struct CalibrateOptions {
  std::string measurements, write, results = "trellis_calibrate";
  int jobs = 0;
  bool json = false;
};

void run_calibrate(const CalibrateOptions& options) {
  OutputFiles files({{"--write", options.write}});
  const std::vector<analysis::TrainingRun> runs = analysis::read_measurements(options.measurements);
  analysis::TrainingRequest request;
  request.program = std::filesystem::canonical("/proc/self/exe");
  request.results = std::filesystem::absolute(options.results);
  request.jobs = options.jobs > 0
                     ? options.jobs
                     : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::size_t finished = 0;
  Activity activity("simulating measured steps");
  const auto predictions = analysis::predict(
      runs, request, [&](const analysis::TrainingRun& run, const analysis::Prediction& p) {
        activity.count(static_cast<std::int64_t>(finished) + 1,
                       static_cast<std::int64_t>(runs.size()));
        std::cerr << "[" << ++finished << "/" << runs.size() << "] " << run.row.id << ": ";
        p.error.empty() ? std::cerr << p.step_s << " s simulated, " << run.row.time_us * 1e-6
                                    << " s measured" << (p.kept ? ", kept" : "") << "\n"
                        : std::cerr << "exit code " << p.exit_code << "\n";
      });
  const analysis::CalibrateResult result =
      analysis::calibrate(runs, predictions, options.measurements);
  files.write("--write", [&] { return analysis::to_yaml(result.calibration); });
  std::cout << (options.json ? analysis::calibrate_json(result).dump(1) + "\n"
                             : analysis::calibrate_text(result))
            << std::flush;
  files.finish();
}

}  // namespace

void add_calibrate(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "calibrate",
      "fit simulated steps to your own measurements, and report the rest of them separately");
  auto options = std::make_shared<CalibrateOptions>();
  verb->add_option(
          "measurements", options->measurements,
          "CSV: config, instance, use (fit or test), and step_s or run (the folder of a run that a "
          "device of LibTorch timed); if wanted nodes, overrides, id")
      ->required();
  verb->add_option("--write", options->write,
                   "calibration file for `trellis simulate --calibration`")
      ->type_name("FILE")
      ->check(not_empty("a file name"));
  verb->add_option("--jobs", options->jobs, "simulations at the same time; 0: one per host core")
      ->capture_default_str()
      ->check(between(0, kMostThreads, "each is a process"));
  verb->add_option("--results", options->results,
                   "folder of the simulations, which are kept while configuration, machine and "
                   "program are the same")
      ->type_name("DIR")
      ->capture_default_str();
  verb->add_flag("--json", options->json, "one JSON document (schema trellis.calibrate/1)");
  verb->footer(
      "Example of the file:\n  config,instance,nodes,overrides,step_s,use\n  "
      "llama.yaml,trn1.32xlarge,4,trainer.num_nodes=4 data.global_batch_size=256,9.81,fit\n"
      "Fitted are two factors at most: on compute and on the communication that a step waits for. "
      "The machine's own numbers stay as they are.\n"
      "Examples:\n  trellis calibrate mine.csv --write mine.yaml\n  trellis simulate llama.yaml "
      "--calibration mine.yaml");
  verb->callback([options, &exit_code] {
    run_calibrate(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
