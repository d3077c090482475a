// A whole training step (data, forward, backward, clip, optimizer) of a 2-layer Llama, d 512,
// sequence 256, with recording on, and the same step with device cpu as the baseline of the same
// run. Goal: at most 1.15 times. The simulation of the step is not part of it: simulate_step has a
// separate row.
#include <string>
#include <vector>

#include "benchmarks/trainer/small_step.h"
#include "runtime/groups/device_plugin.h"

#include <nlohmann/json.hpp>

namespace trellis::benchmarks {
namespace {

constexpr int kTurns = 6;

const runtime::DevicePlugin& plugin() {
  static const runtime::DevicePlugin& loaded = []() -> const runtime::DevicePlugin& {
    const auto& library =
        runtime::DevicePlugin::load(TRELLIS_BUILD_DIR "/lib/libtrellis_neuron.so");
    library.check(library.api().configure(
        R"({"schema": "trellis.device_options/1", "instance": "trn2.48xlarge", "world_size": 1})"));
    return library;
  }();
  return loaded;
}

runtime::WorldOptions neuron_world() {
  runtime::WorldOptions world;
  world.device_type = "neuron";
  world.plugin = &plugin();
  return world;
}

/// Host memory of the records of the largest graph so far, over its operations. Goal: at most 64.
double bytes_per_recorded_op() {
  const char* report = nullptr;
  plugin().check(plugin().api().memory_report(&report));
  const auto document = nlohmann::json::parse(report);
  const auto& graph = document.at("ranks").at(0).at("largest_graph");
  return graph.at("record_bytes").get<double>() / graph.at("operations").get<double>();
}

void step(benchmark::State& state, const char* precision) {
  std::vector<double> cpu;
  std::vector<double> neuron;
  for (auto _ : state) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (double seconds : step_seconds(precision, {})) cpu.push_back(seconds);
      for (double seconds : step_seconds(precision, neuron_world())) neuron.push_back(seconds);
    }
    Alternating{timing_of(cpu), timing_of(neuron)}.report(state);
    state.counters["bytes_per_recorded_op"] = bytes_per_recorded_op();
  }
}

/// The last step again: programs are compiled and timed already, as in all steps of a training but
/// the first.
void simulate_step(benchmark::State& state) {
  step_seconds("mixed_precision", neuron_world());
  const char* report = nullptr;
  for (auto _ : state) plugin().check(plugin().api().simulate_step(kStepsPerTurn, &report));
}

BENCHMARK_CAPTURE(step, fp32_against_cpu, "fp32")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, mixed_precision_against_cpu, "mixed_precision")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(simulate_step)->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
}  // namespace trellis::benchmarks

BENCHMARK_MAIN();
