#include <benchmark/benchmark.h>

#include "device/kernels/catalogue.h"
#include "sim/config/load_system.h"
#include "sim/sim.h"

// The cost of the simulation of a whole kernel on the host, its compilation left out. Bars: 150 ns
// an instruction, 0.1 s for a 4096³ matmul.
namespace trellis::device {
namespace {

std::int64_t executed(const std::vector<sim::isa::Instruction>& queue) {
  std::int64_t total = 0;
  std::vector<std::int64_t> factors{1};
  for (const auto& i : queue) {
    total += factors.back();
    if (i.opcode == sim::isa::Opcode::kLoop) factors.push_back(factors.back() * i.count);
    if (i.opcode == sim::isa::Opcode::kEndLoop) factors.pop_back();
  }
  return total;
}

void simulate(benchmark::State& state, const KernelRequest& request) {
  const sim::SystemConfig system =
      sim::load_system("trn2.48xlarge", {.logical_core_size = 1, .overrides = {}});
  sim::Simulator simulator(system);
  const BuiltKernel built = build_kernel(complete(request, system), system);
  std::int64_t instructions = 0;
  for (const auto& segment : built.program.segments) {
    for (const auto& queue : segment.queues) instructions += executed(queue);
  }
  const sim::TimeOptions options{.fast_forward = state.range(0) != 0, .neighbour_load = {}};
  for (auto _ : state) benchmark::DoNotOptimize(simulator.time_program(built.program, options));
  state.counters["instructions"] = static_cast<double>(instructions);
  state.counters["per_instruction"] =
      benchmark::Counter(static_cast<double>(state.iterations() * instructions),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

KernelRequest request(const std::string& name, std::map<std::string, std::int64_t> sizes) {
  KernelRequest r;
  r.name = name;
  r.sizes = std::move(sizes);
  r.dtype = "bf16";
  return r;
}

void Matmul4096(benchmark::State& state) {
  simulate(state, request("matmul", {{"m", 4096}, {"k", 4096}, {"n", 4096}}));
}
void Matmul16384(benchmark::State& state) {
  simulate(state, request("matmul", {{"m", 16384}, {"k", 16384}, {"n", 16384}}));
}
void FlashAttention8k(benchmark::State& state) {
  simulate(state, request("flash_attention", {{"queries", 8192}, {"keys", 8192}, {"heads", 32}}));
}
void FlashAttentionBackward8k(benchmark::State& state) {
  simulate(state,
           request("flash_attention_backward", {{"queries", 8192}, {"keys", 8192}, {"heads", 32}}));
}

#define TRELLIS_KERNEL_BENCHMARK(name) \
  BENCHMARK(name)->ArgName("skip")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime()
TRELLIS_KERNEL_BENCHMARK(Matmul4096);
TRELLIS_KERNEL_BENCHMARK(Matmul16384);
TRELLIS_KERNEL_BENCHMARK(FlashAttention8k);
TRELLIS_KERNEL_BENCHMARK(FlashAttentionBackward8k);

}  // namespace
}  // namespace trellis::device

BENCHMARK_MAIN();
