// All-reduce on eight rank threads, with memcpy of the same bytes on as many host threads as the
// baseline of the same run. bandwidth: what the plan sends (2(n−1)/n of the buffer per rank, all
// ranks) over the time. fraction_of_memcpy: against the baseline.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runtime/ranks/world.h"

namespace {

using trellis::runtime::RankContext;
using trellis::runtime::run_ranks;
using trellis::runtime::WorldOptions;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 8;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds per copy of `bytes`, split over all host threads; buffers touched before.
double memcpy_seconds(std::size_t bytes, int repeats) {
  const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t share = bytes / threads;
  std::vector<char> source(bytes, 1);
  std::vector<char> target(bytes, 2);
  const auto start = Clock::now();
  std::vector<std::thread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (int i = 0; i < repeats; ++i) {
        std::memcpy(target.data() + t * share, source.data() + t * share, share);
        benchmark::ClobberMemory();
      }
    });
  }
  for (auto& worker : workers) worker.join();
  return seconds_since(start) / repeats;
}

/// Seconds per all-reduce of `elements` floats per rank.
double all_reduce_seconds(std::int64_t elements, int repeats) {
  WorldOptions options;
  options.world_size = kRanks;
  std::vector<int> everyone;
  for (int r = 0; r < kRanks; ++r) everyone.push_back(r);
  double seconds = 0;
  run_ranks(options, [&](RankContext& context) {
    auto group = context.new_group("dp", everyone);
    std::vector<at::Tensor> tensors{at::zeros({elements})};
    for (int i = 0; i < 3; ++i) group->allreduce(tensors)->wait();
    context.host_barrier();
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) group->allreduce(tensors)->wait();
    context.host_barrier();
    if (context.rank() == 0) seconds = seconds_since(start) / repeats;
  });
  return seconds;
}

void all_reduce(benchmark::State& state) {
  const auto bytes = state.range(0);
  const int repeats = bytes > (1 << 20) ? 5 : 2000;
  const double moved = 2.0 * (kRanks - 1) / kRanks * static_cast<double>(bytes) * kRanks;
  double seconds = 0;
  for (auto _ : state) {
    seconds = all_reduce_seconds(bytes / 4, repeats);
    state.SetIterationTime(seconds);
  }
  const double copy =
      memcpy_seconds(static_cast<std::size_t>(bytes) * kRanks, bytes > (1 << 20) ? 3 : 1000) /
      (static_cast<double>(bytes) * kRanks);
  state.counters["bandwidth_GB_s"] = moved / seconds * 1e-9;
  state.counters["memcpy_GB_s"] = 1e-9 / copy;
  state.counters["fraction_of_memcpy"] = moved / seconds * copy;
}

BENCHMARK(all_reduce)
    ->Arg(4 << 10)
    ->Arg(64 << 20)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(3);

}  // namespace

BENCHMARK_MAIN();
