// The step of small_step.h on the CPU as a device of the provider torch_device, which times steps
// and phases, and the same step on the CPU without a plugin as the baseline of the same run. Goal:
// at most 1.02 times.
#include <vector>

#include "benchmarks/trainer/small_step.h"
#include "runtime/groups/device_plugin.h"

namespace trellis::benchmarks {
namespace {

constexpr int kTurns = 12;

const runtime::DevicePlugin& plugin() {
  static const runtime::DevicePlugin& loaded = []() -> const runtime::DevicePlugin& {
    const auto& library =
        runtime::DevicePlugin::load(TRELLIS_BUILD_DIR "/lib/libtrellis_torch_device.so");
    library.check(library.api().configure(
        R"({"schema": "trellis.torch_device_options/1", "device": "cpu", "library": "",
            "backend": "", "address": "", "world_size": 1, "first_rank": 0,
            "first_local_rank": 0, "seed": 1})"));
    return library;
  }();
  return loaded;
}

void step(benchmark::State& state, const char* precision) {
  runtime::WorldOptions through;
  through.plugin = &plugin();
  std::vector<double> without, with;
  for (auto _ : state) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (double seconds : step_seconds(precision, {})) without.push_back(seconds);
      for (double seconds : step_seconds(precision, through)) with.push_back(seconds);
    }
    Alternating{timing_of(without), timing_of(with)}.report(state);
  }
}

BENCHMARK_CAPTURE(step, fp32_against_cpu, "fp32")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, mixed_precision_against_cpu, "mixed_precision")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trellis::benchmarks

BENCHMARK_MAIN();
