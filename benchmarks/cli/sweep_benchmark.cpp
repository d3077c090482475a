#include <string>

#include <benchmark/benchmark.h>

#include "analysis/sweep/space.h"

/// All candidates of GPT 22B on 8 cores judged by the rules and the closed bounds; nothing is
/// simulated.
namespace trellis::analysis {
namespace {

void judge_gpt_22b(benchmark::State& state) {
  SweepRequest request;
  request.config = std::string(TRELLIS_SOURCE_DIR) + "/benchmarks/cli/gpt_22b.yaml";
  request.instance = "trn2.48xlarge";
  request.chips = 2;
  request.global_batch_size = state.range(0);
  std::size_t candidates = 0, legal = 0;
  for (auto _ : state) {
    const SweepSpace space = open_space(request);
    const std::vector<SweepRow> rows = judge(space, 2);
    candidates = rows.size();
    legal = 0;
    for (const SweepRow& row : rows) legal += row.status == SweepStatus::kIllegal ? 0 : 1;
  }
  state.counters["candidates"] = static_cast<double>(candidates);
  state.counters["legal"] = static_cast<double>(legal);
  state.counters["candidates_per_s"] = benchmark::Counter(
      static_cast<double>(candidates), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(judge_gpt_22b)
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace trellis::analysis

BENCHMARK_MAIN();
