// The cost of reports and dumps for a communication: its place (open scopes, source line) and its
// entry among the last 2,048, next to a whole barrier of two rank threads.
#include <chrono>

#include <benchmark/benchmark.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runtime/calls/call_place.h"
#include "runtime/calls/flight_recorder.h"
#include "runtime/ranks/world.h"

namespace {

using namespace trellis::runtime;

std::unique_ptr<at::RecordFunction> scope(const char* name) {
  auto guard = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (guard->isActive()) guard->before(std::string(name));
  return guard;
}

/// A scope that opens and closes while a rank's scopes are watched.
void BM_Scope(benchmark::State& state) {
  OpenScopes scopes;
  scopes.enter();
  for (auto _ : state) benchmark::DoNotOptimize(scope("layer=model.layers.0.mlp"));
  scopes.leave();
}
BENCHMARK(BM_Scope);

void BM_Record(benchmark::State& state) {
  OpenScopes scopes;
  scopes.enter();
  {
    const auto phase = scope("phase=forward"), pass = scope("microbatch=3"),
               layer = scope("layer=model.layers.0.mlp");
    FlightRecorder recorder;
    const auto group =
        std::make_shared<const GroupInfo>(GroupInfo{"tp", {0, 1}, 0, 2, "tp [0, 1]"});
    const auto transfer = std::make_shared<Exchange>(group, 0);
    Side side;
    side.call.elements = 1024;
    const CallSite here;
    for (auto _ : state) recorder.add(side, transfer, 1, current_place());
  }
  scopes.leave();
}
BENCHMARK(BM_Record);

void BM_BarrierOfTwoThreads(benchmark::State& state) {
  constexpr int kRepeats = 2000;
  for (auto _ : state) {
    WorldOptions options;
    options.world_size = 2;
    double seconds = 0;
    run_ranks(options, [&](RankContext& context) {
      auto group = context.new_group("dp", {0, 1});
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kRepeats; ++i) group->barrier()->wait();
      if (context.rank() == 0)
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    state.SetIterationTime(seconds / kRepeats);
  }
}
BENCHMARK(BM_BarrierOfTwoThreads)->UseManualTime()->Iterations(5);

}  // namespace

BENCHMARK_MAIN();
