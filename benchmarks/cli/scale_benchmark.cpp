#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "benchmarks/support/child_run.h"

/// `trellis simulate` of large runs. Each figure is the smaller of two runs, after one that fills
/// the cache of timings: what costs here is the trainer's execution, the schedule and the cluster.
/// Ratios are of CPU time, compared with a baseline of the same process.
namespace {

using trellis::benchmarks::run_child;
using trellis::benchmarks::Usage;

const std::string kSource = TRELLIS_SOURCE_DIR;
constexpr int kRuns = 2;

/// The fastest of several runs of `trellis simulate`; `warm`: timings are in the cache already.
Usage simulate(std::vector<std::string> arguments, int runs = kRuns) {
  arguments.insert(arguments.begin(),
                   {std::string(TRELLIS_BUILD_DIR) + "/bin/trellis", "simulate"});
  const auto folder = std::filesystem::temp_directory_path() /
                      ("trellis_scale_benchmark_" + std::to_string(getpid()));
  arguments.push_back("exp_manager.explicit_log_dir=" + folder.string());
  arguments.emplace_back("--no-cache");  // a kept run would answer
  Usage best = run_child(arguments);
  for (int i = 1; i < runs; ++i) {
    const Usage usage = run_child(arguments);
    best = {std::min(best.wall_s, usage.wall_s), std::min(best.cpu_s, usage.cpu_s),
            std::max(best.peak_rss_bytes, usage.peak_rss_bytes)};
  }
  std::filesystem::remove_all(folder);
  return best;
}

void report(benchmark::State& state, const Usage& usage) {
  state.SetIterationTime(usage.wall_s);
  state.counters["cpu_s"] = usage.cpu_s;
  state.counters["peak_rss_bytes"] = usage.peak_rss_bytes;
}

/// Llama-3 70B on 32 nodes, TP 32 × PP 8 × DP 4, 256 micro-batches, compared with the same with
/// every micro-batch executed.
void llama3_70b_replayed(benchmark::State& state) {
  const std::vector<std::string> run{kSource + "/examples/nxdt/hf_llama3_70B_config.yaml",
                                     "--nodes", "32", "trainer.num_nodes=32",
                                     "data.global_batch_size=1024"};
  std::vector<std::string> executed = run;
  executed.emplace_back("--no-replay");
  for (auto _ : state) {
    const Usage all = simulate(executed, 1), replayed = simulate(run);
    report(state, replayed);
    state.counters["no_replay_cpu_s"] = all.cpu_s;
    state.counters["ratio"] = replayed.cpu_s / all.cpu_s;
  }
}

std::vector<std::string> replicas(int dp) {
  const std::string nodes = std::to_string(4 * dp);
  return {kSource + "/examples/nxdt/hf_llama3_70B_config.yaml",
          "--nodes",
          nodes,
          "trainer.num_nodes=" + nodes,
          "data.global_batch_size=" + std::to_string(16 * dp),
          "distributed_strategy.pipeline_model_parallel_size=4"};
}

/// TP 32 × PP 4 on 64 chips, compared with as many replicas of it as the argument says: 16 chips
/// each for a pipeline stage.
void growth(benchmark::State& state) {
  for (auto _ : state) {
    const Usage one = simulate(replicas(1)),
                many = simulate(replicas(static_cast<int>(state.range(0))));
    report(state, many);
    state.counters["dp1_cpu_s"] = one.cpu_s;
    state.counters["dp1_peak_rss_bytes"] = one.peak_rss_bytes;
    state.counters["ratio"] = many.cpu_s / one.cpu_s;
  }
}

/// GPT 22B, TP 8 × DP 8 on 64 cores of a trn2.48xlarge, compared with process start alone.
void gpt_22b_64_ranks(benchmark::State& state) {
  const std::string program = std::string(TRELLIS_BUILD_DIR) + "/bin/trellis";
  for (auto _ : state) {
    const Usage usage = simulate({kSource + "/benchmarks/cli/gpt_22b.yaml", "--instance",
                                  "trn2.48xlarge", "trainer.devices=64"},
                                 1 + kRuns);
    report(state, usage);
    state.counters["version_wall_s"] = run_child({program, "--version"}).wall_s;
  }
}

/// `run` with empty caches, then its answer from the cache of runs.
void cold_and_kept(benchmark::State& state, std::vector<std::string> run) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("trellis_cold_benchmark_" + std::to_string(getpid()));
  run.insert(run.begin(), {std::string(TRELLIS_BUILD_DIR) + "/bin/trellis", "simulate"});
  run.push_back("exp_manager.explicit_log_dir=" + (folder / "run").string());
  const char* const before = std::getenv("TRELLIS_CACHE");
  const std::string cache = before == nullptr ? "" : before;
  setenv("TRELLIS_CACHE", (folder / "cache").c_str(), 1);
  for (auto _ : state) {
    std::filesystem::remove_all(folder);
    report(state, run_child(run));
    const Usage first = run_child(run), second = run_child(run);
    state.counters["kept_wall_s"] = std::min(first.wall_s, second.wall_s);
    state.counters["kept_cpu_s"] = std::min(first.cpu_s, second.cpu_s);
  }
  std::filesystem::remove_all(folder);
  if (before == nullptr) {
    unsetenv("TRELLIS_CACHE");
  } else {
    setenv("TRELLIS_CACHE", cache.c_str(), 1);
  }
}

/// Mixtral 8×7B at full size on 64 nodes, 2,048 ranks, whose router prefers some experts: dropped
/// beyond a capacity, and dropless over EP 8, where the ranks of a stage have eight loads.
void mixtral_64_nodes(benchmark::State& state) {
  const bool dropless = state.range(0) == 1;
  std::vector<std::string> run{
      kSource + "/examples/nxdt/hf_mixtral_8x7b_" + (dropless ? "dropless_" : "") + "config.yaml",
      "trainer.num_nodes=64", "data.global_batch_size=2048", "--routing", "zipf:1.1"};
  if (dropless)
    run.insert(run.end(), {"distributed_strategy.tensor_model_parallel_size=8",
                           "distributed_strategy.expert_model_parallel_size=8"});
  cold_and_kept(state, run);
}

/// A mixture of 1 T parameters on 9,216 ranks, and its bounds alone.
void mixture_1t(benchmark::State& state) {
  const std::string file = kSource + "/benchmarks/cli/mixture_1t.yaml";
  cold_and_kept(state, {file});
  state.counters["fast_wall_s"] =
      run_child({std::string(TRELLIS_BUILD_DIR) + "/bin/trellis", "simulate", file, "--fast"})
          .wall_s;
}

BENCHMARK(mixtral_64_nodes)
    ->ArgName("dropless")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);
BENCHMARK(mixture_1t)->UseManualTime()->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK(llama3_70b_replayed)->UseManualTime()->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK(growth)
    ->Arg(32)
    ->Arg(1024)
    ->Arg(1600)
    ->UseManualTime()
    ->Unit(benchmark::kSecond)
    ->Iterations(1);
BENCHMARK(gpt_22b_64_ranks)->UseManualTime()->Unit(benchmark::kSecond)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
