#include <benchmark/benchmark.h>

#include <fstream>

#include "sim/config/load_system.h"
#include "sim/sim.h"
#include "tests/sim/cluster/job_builder.h"
#include "tests/sim/tiny_program.h"

// The cost of the model on the host: building it, a simulated instruction, a simulated cluster
// item. Bars: 0.2 s for the model of a node; 150 ns an instruction, one by one; a step of 32 ranks
// with 5,000 items each in less than 3 s.
namespace trellis::sim {
namespace {

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

/// First in the file: SystemC elaborates once, so only the first Simulator of the process builds
/// the modules.
void BuildNode(benchmark::State& state) {
  const SystemConfig system = load_system("trn2.48xlarge");
  const std::int64_t before = resident_bytes();
  for (auto _ : state) {
    Simulator simulator(system);
    benchmark::DoNotOptimize(simulator.time_program(isa::testing::tiny_gemm(1)));
  }
  state.counters["bytes_per_chip"] =
      static_cast<double>(resident_bytes() - before) / system.instance.chips;
}
BENCHMARK(BuildNode)->Iterations(1)->Unit(benchmark::kMillisecond)->UseRealTime();

/// Times the program step by step (the baseline) and with loops skipped: a benchmark's time is the
/// mean over its iterations.
void time_instructions(benchmark::State& state, const isa::Program& program,
                       std::int64_t instructions) {
  Simulator simulator(load_system("trn2.48xlarge"));
  const TimeOptions options{.fast_forward = state.range(1) != 0, .neighbour_load = {}};
  for (auto _ : state) benchmark::DoNotOptimize(simulator.time_program(program, options));
  state.counters["per_instruction"] =
      benchmark::Counter(static_cast<double>(state.iterations() * instructions),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

/// Per iteration: one DMA start, one weight load, one matmul.
void GemmWithDma(benchmark::State& state) {
  time_instructions(state, isa::testing::tiny_gemm(state.range(0)), state.range(0) * 3);
}
BENCHMARK(GemmWithDma)
    ->ArgNames({"iterations", "skip"})
    ->Args({1000, 0})
    ->Args({1000, 1})
    ->Args({100000, 0})
    ->Args({100000, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// Matmuls on data that are in SBUF: no semaphore, no DMA inside the loop.
void MatmulsOnly(benchmark::State& state) {
  auto program = isa::testing::tiny_gemm(4);
  auto& tensor = program.segments[0].queues[0];
  tensor[1].count = state.range(0);
  tensor[3].waits.clear();
  tensor[3].updates.clear();
  tensor[0].updates.front().value = 4;
  time_instructions(state, program, 2 * state.range(0));
}
BENCHMARK(MatmulsOnly)
    ->ArgNames({"iterations", "skip"})
    ->Args({1000000, 0})
    ->Args({1000000, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// Both cores of a pair, on one HBM stack.
void PairOfGemms(benchmark::State& state) {
  Simulator simulator(load_system("trn2.48xlarge", {.logical_core_size = 1, .overrides = {}}));
  const auto program = isa::testing::tiny_gemm(10000);
  const TimeOptions options{.fast_forward = state.range(0) != 0, .neighbour_load = {}};
  for (auto _ : state) benchmark::DoNotOptimize(simulator.time_pair(program, program, options));
  state.counters["per_instruction"] =
      benchmark::Counter(static_cast<double>(state.iterations() * 60000),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(PairOfGemms)
    ->ArgName("skip")
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// Four ring groups load tiles of `range` bytes a row at the same time. Target: over 1 GB of
/// traffic per host second.
void ContendedDma(benchmark::State& state) {
  LoadOptions physical;
  physical.logical_core_size = 1;
  Simulator simulator(load_system("trn2.48xlarge", physical));
  const std::int64_t transfers = 1000;
  const std::int64_t bytes = 4 * transfers * 128 * state.range(0);
  const auto program = isa::testing::four_rings(transfers, static_cast<int>(state.range(0)));
  TimeOptions every_packet;
  every_packet.fast_forward = false;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.time_program(program, every_packet));
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(ContendedDma)
    ->Arg(256)
    ->Arg(2048)
    ->Arg(32768)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

/// A training step in outline: tensor-parallel collectives between short segments, then a
/// data-parallel all-reduce.
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
  state.counters["items_per_s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * ranks * items, benchmark::Counter::kIsRate);
}
BENCHMARK(TrainingStep)->Arg(32)->Arg(256)->Unit(benchmark::kMillisecond)->UseRealTime();

/// All-reduce of 1 GiB over 1,024 ranks with the machine built again. Target: less than 1 s, the
/// program's start included.
void AllReduceOf1024Ranks(benchmark::State& state, const char* instance) {
  for (auto _ : state) {
    const SystemConfig system = load_system(instance, 16);
    benchmark::DoNotOptimize(time_collective(
        system, {CollectiveKind::kAllReduce, testing::range(0, 1024), Bytes(1 << 30), 4, {}}));
  }
}
BENCHMARK_CAPTURE(AllReduceOf1024Ranks, instances, "trn2.48xlarge")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(AllReduceOf1024Ranks, ultraservers, "trn2u.48xlarge")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace trellis::sim

BENCHMARK_MAIN();
