#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "benchmarks/support/child_run.h"

/// Whole runs of the program, as a user starts them: wall time and host memory. `--version` is the
/// baseline: process start alone.
namespace {

using trellis::benchmarks::Usage;

/// `warm`: after one run that is not measured.
void measure(benchmark::State& state, std::vector<std::string> arguments, bool warm = false) {
  arguments.insert(arguments.begin(), std::string(TRELLIS_BUILD_DIR) + "/bin/trellis");
  const auto folder =
      std::filesystem::temp_directory_path() / ("trellis_benchmark_" + std::to_string(getpid()));
  if (arguments.size() > 2) arguments.push_back("exp_manager.explicit_log_dir=" + folder.string());
  double peak = 0;
  if (warm) (void)trellis::benchmarks::run_child(arguments);
  for (auto _ : state) {
    std::filesystem::remove_all(folder);
    const Usage usage = trellis::benchmarks::run_child(arguments);
    state.SetIterationTime(usage.wall_s);
    peak = std::max(peak, usage.peak_rss_bytes);
  }
  state.counters["peak_rss_bytes"] = peak;
  std::filesystem::remove_all(folder);
}

const std::string kExamples = std::string(TRELLIS_SOURCE_DIR) + "/examples/";

BENCHMARK_CAPTURE(measure, version, std::vector<std::string>{"--version"})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(measure, quickstart,
                  std::vector<std::string>{"train", kExamples + "quickstart.yaml"})
    ->UseManualTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(measure, quickstart_cpu,
                  std::vector<std::string>{"train", kExamples + "quickstart.yaml", "--device",
                                           "cpu"})
    ->UseManualTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(measure, simulate_llama3_8b,
                  std::vector<std::string>{"simulate", kExamples + "llama3_8b_trn1.yaml",
                                           "--no-cache"})
    ->UseManualTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(measure, import_megatron_config,
                  std::vector<std::string>{"import", kExamples + "nxdt/megatron_gpt_config.yaml",
                                           "--from", "nxdt"})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);
/// The same question again: answered by the kept run.
BENCHMARK_CAPTURE(measure, simulate_llama3_8b_again,
                  std::vector<std::string>{"simulate", kExamples + "llama3_8b_trn1.yaml"}, true)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

}  // namespace

BENCHMARK_MAIN();
