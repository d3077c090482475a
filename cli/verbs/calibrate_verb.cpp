#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/calibrate/calibrate_report.h"
#include "analysis/calibrate/measurements.h"
#include "base/activity.h"
#include "base/process/parallel_for.h"
#include "cli/options/not_empty.h"
#include "cli/options/number_range.h"
#include "cli/output/output_files.h"
#include "cli/verbs/verbs.h"

namespace trellis::cli {
namespace {

struct CalibrateOptions {
  std::string measurements, write, results = "trellis_calibrate";
  int jobs = 0;
  bool json = false;
};

void run_calibrate(const CalibrateOptions& options) {
  OutputFiles files({{"--write", options.write}});
  analysis::Measurements measurements = analysis::read_measurements(options.measurements);
  const std::vector<analysis::TrainingRun>& runs = measurements.runs;
  analysis::time_parts(measurements.parts);
  analysis::TrainingRequest request;
  request.program = std::filesystem::canonical("/proc/self/exe");
  request.results = std::filesystem::absolute(options.results);
  request.jobs = options.jobs > 0 ? options.jobs : static_cast<int>(host_cores());
  std::size_t finished = 0;
  Activity activity("simulating measured steps");
  auto predictions = analysis::predict(
      runs, request, [&](const analysis::TrainingRun& run, const analysis::Prediction& p) {
        activity.count(static_cast<std::int64_t>(finished) + 1,
                       static_cast<std::int64_t>(runs.size()));
        std::cerr << "[" << ++finished << "/" << runs.size() << "] " << run.row.id << ": ";
        p.error.empty() ? std::cerr << p.step_s << " s simulated, " << run.row.time_us * 1e-6
                                    << " s measured" << (p.kept ? ", kept" : "") << "\n"
                        : std::cerr << "exit code " << p.exit_code << "\n";
      });
  const analysis::CalibrateResult result =
      analysis::calibrate(std::move(measurements), std::move(predictions), options.measurements);
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
          "CSV: instance, use (fit or test), and for a step config and step_s or run (the folder "
          "of "
          "a run that a device of LibTorch timed), if wanted nodes, overrides, id; for kernels and "
          "collectives kind, what and time_us or profile")
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
      "  kind,instance,what,time_us,profile,use\n"
      "  kernel,trn1.32xlarge,matmul m=4096 k=4096 n=4096 dtype=bf16 lhs_transposed=1,1700,,fit\n"
      "  kernel,trn1.32xlarge,matmul m=1024 k=4096 n=4096 dtype=bf16,,summary.json,fit\n"
      "  collective,trn1.32xlarge,all_reduce ranks=32 size=64MiB dtype=bf16,1053.8,,fit\n"
      "A kernel is one of `trellis kernel --list` (measured=benchmark: the time of a timing loop); "
      "a profile is what `neuron-profile view --output-format summary-json` printed; a "
      "collective's "
      "size is nccom-test's.\n"
      "Fitted are two factors at most, those of what was measured: kernels say something about "
      "compute, collectives about the communication that a step waits for, steps about both. "
      "The machine's own numbers stay as they are.\n"
      "Examples:\n  trellis calibrate mine.csv --write mine.yaml\n  trellis simulate llama.yaml "
      "--calibration mine.yaml");
  verb->callback([options, &exit_code] {
    run_calibrate(*options);
    exit_code = 0;
  });
}

}  // namespace trellis::cli
