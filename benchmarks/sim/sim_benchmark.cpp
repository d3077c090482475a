#include <benchmark/benchmark.h>

#include "sim/sim.h"
#include "tests/sim/cluster/job_builder.h"
#include "tests/sim/tiny_program.h"

// What a simulated instruction and a simulated cluster item cost on the host. Targets: 150 to 300 ns per instruction; a step of 32 ranks
// with 5,000 items each in less than 3 s.
namespace trellis::sim {
namespace {

void GemmWithDma(benchmark::State& state) {
  Simulator simulator(load_system("trn2.48xlarge"));
  const std::int64_t iterations = state.range(0);
  const auto program = isa::testing::tiny_gemm(iterations);
  for (auto _ : state) benchmark::DoNotOptimize(simulator.time_program(program));
  // Per iteration: one DMA start, one weight load, one matmul.
  state.counters["per_instruction"] = benchmark::Counter(static_cast<double>(state.iterations() * iterations * 3), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(GemmWithDma)->Arg(1000)->Arg(100000)->Unit(benchmark::kMillisecond)->UseRealTime();

/// Matmuls on data that are in SBUF: no semaphore, no DMA inside the loop.
void MatmulsOnly(benchmark::State& state) {
  Simulator simulator(load_system("trn2.48xlarge"));
  auto program = isa::testing::tiny_gemm(4);
  auto& tensor = program.segments[0].queues[0];
  tensor[1].count = 1'000'000;
  tensor[3].waits.clear();
  tensor[3].updates.clear();
  tensor[0].updates.front().value = 4;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.time_program(program));
  state.counters["per_instruction"] = benchmark::Counter(static_cast<double>(state.iterations()) * 2e6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(MatmulsOnly)->Unit(benchmark::kMillisecond)->UseRealTime();

/// A training step in outline: tensor-parallel collectives between short segments, then a data-parallel all-reduce.
void TrainingStep(benchmark::State& state) {
  using testing::range;
  const int ranks = static_cast<int>(state.range(0));
  const int items = 5000;
  Simulator simulator(load_system("trn1.32xlarge", (ranks + 31) / 32));
  testing::JobBuilder b(ranks);
  const auto work = b.program(Picoseconds(50'000'000));
  std::vector<std::uint32_t> tp;
  std::vector<std::uint32_t> dp;
  for (int r = 0; r < ranks; r += 8) tp.push_back(b.group("tp", range(r, r + 8)));
  for (int r = 0; r < 8; ++r) dp.push_back(b.group("dp", range(r, ranks, 8)));
  for (int i = 0; i < items / 3; ++i) {
    for (int rank = 0; rank < ranks; ++rank) b.compute(rank, work);
    for (const auto group : tp) b.all(b.comm(CollectiveKind::kAllReduce, group, 8 << 20));
  }
  for (const auto group : dp) b.all(b.comm(CollectiveKind::kAllReduce, group, 256 << 20));
  for (auto _ : state) benchmark::DoNotOptimize(simulator.run_cluster(b.job()));
  state.counters["items_per_s"] = benchmark::Counter(static_cast<double>(state.iterations()) * ranks * items, benchmark::Counter::kIsRate);
}
BENCHMARK(TrainingStep)->Arg(32)->Arg(256)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace trellis::sim

BENCHMARK_MAIN();
