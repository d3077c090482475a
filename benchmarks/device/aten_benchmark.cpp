#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>

#include "device/aten/rank_state.h"

/// What an operator costs on `neuron` beyond the same operator on the CPU, the named baseline of the same run. Goal: a recorded 4 × 4
/// operator costs at most 0.5 µs more.
namespace trellis::device {
namespace {

enum class Where { kCpu, kNeuron, kNeuronUnrecorded, kShapeOnly };

c10::Device device_of(Where where) {
  return where == Where::kCpu ? c10::Device(c10::kCPU)
                              : c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(static_cast<int>(where) - 1));
}

void configure_once() {
  if (device_count() > 0) return;
  const Bytes hbm(std::int64_t{16} << 30);
  configure_devices(
      {{new RankRecorder(0, hbm, true), false}, {new RankRecorder(1, hbm, false), false}, {new RankRecorder(2, hbm, true), true}});
  at::set_num_threads(1);
}

template <typename Body>
void measure(benchmark::State& state, Where where, Body body) {
  configure_once();
  const c10::Device device = device_of(where);
  if (device.is_privateuseone()) bind_this_thread(device.index());
  const at::Tensor a = at::ones({4, 4}, at::TensorOptions(device)), b = at::ones({4, 4}, at::TensorOptions(device));
  std::int64_t since_cut = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(body(a, b));
    if (++since_cut == 4096 && device.is_privateuseone()) {  // a graph ends now and then; its making is not what is measured
      state.PauseTiming();
      rank_state(device.index()).recorder().cut("benchmark");
      since_cut = 0;
      state.ResumeTiming();
    }
  }
}

void add(benchmark::State& state, Where where) {
  measure(state, where, [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); });
}
void add_in_place(benchmark::State& state, Where where) {
  measure(state, where, [](const at::Tensor& a, const at::Tensor& b) { return const_cast<at::Tensor&>(a).add_(b), 0; });
}
void mm(benchmark::State& state, Where where) {
  measure(state, where, [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); });
}
void empty(benchmark::State& state, Where where) {
  measure(state, where, [](const at::Tensor& a, const at::Tensor&) { return at::empty({4, 4}, a.options()); });
}

#define EVERYWHERE(op)                                                \
  BENCHMARK_CAPTURE(op, cpu_baseline, Where::kCpu);                   \
  BENCHMARK_CAPTURE(op, neuron_recorded, Where::kNeuron);             \
  BENCHMARK_CAPTURE(op, neuron_unrecorded, Where::kNeuronUnrecorded); \
  BENCHMARK_CAPTURE(op, shape_only, Where::kShapeOnly)

EVERYWHERE(add);
EVERYWHERE(add_in_place);
EVERYWHERE(mm);
EVERYWHERE(empty);

}  // namespace
}  // namespace trellis::device

BENCHMARK_MAIN();
