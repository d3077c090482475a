#include <random>

#include <benchmark/benchmark.h>

#include "device/driver/memory/memory_account.h"

/// The cost of a tensor's block on the host. Goal: an allocation and its release take at most 60
/// ns. The named baseline is the least that an account could do: one counter and its peak.
namespace trellis::device {
namespace {

constexpr std::int64_t kHbm = std::int64_t{24} << 30;

void counter(benchmark::State& state) {
  MemoryStat stat;
  for (auto _ : state) {
    stat.increase(256);
    benchmark::DoNotOptimize(stat);
    stat.decrease(256);
    benchmark::DoNotOptimize(stat);
  }
}
BENCHMARK(counter);

/// One tensor after the other, of `range` bytes.
void pair(benchmark::State& state) {
  MemoryAccount memory(0, Bytes(kHbm));
  for (auto _ : state) {
    memory.advance();
    MemoryBlock* const block = memory.allocate(state.range(0), BufferCategory::kTemporary, 0, 1);
    benchmark::DoNotOptimize(block);
    memory.release(*block);
  }
}
BENCHMARK(pair)->Arg(64)->Arg(4096)->Arg(3 << 20)->Arg(40 << 20);

/// Among a thousand live tensors of random sizes, each allocation takes the place of a random one.
void pair_among_many(benchmark::State& state) {
  MemoryAccount memory(0, Bytes(kHbm));
  std::mt19937 random(1);
  std::vector<MemoryBlock*> live;
  std::vector<std::int64_t> sizes;
  std::vector<std::size_t> victims;
  for (int i = 0; i < 4096; ++i) {
    sizes.push_back(1 + static_cast<std::int64_t>(random() % (1U << (8 + random() % 15))));
    victims.push_back(random() % 1000);
  }
  for (std::size_t i = 0; i < 1000; ++i)
    live.push_back(memory.allocate(sizes[i], BufferCategory::kActivation, 0, i));
  std::size_t i = 0;
  for (auto _ : state) {
    memory.advance();
    MemoryBlock*& place = live[victims[i % victims.size()]];
    memory.release(*place);
    place = memory.allocate(sizes[i++ % sizes.size()], BufferCategory::kTemporary, 0, 1);
  }
}
BENCHMARK(pair_among_many);

}  // namespace
}  // namespace trellis::device

BENCHMARK_MAIN();
