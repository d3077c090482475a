// The cost of an operator on `neuron`, compared with two named baselines of the same run: the same
// operator on the CPU, and the usual way to make a device of CPU kernels
// (device_cpu_fallback_benchmark, which this program runs). Goals: a recorded 4 × 4 operator costs
// at most 500 ns more than on the CPU, a 16-input cat at most twice as much, a shape-only operator
// at most 3 µs in all; the usual way is beaten four times, and nothing is copied.
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "benchmarks/device/small_ops.h"
#include "device/aten/state/observer.h"
#include "device/aten/state/rank_state.h"

namespace trellis::benchmarks {
namespace {

using device::RankRecorder;

enum class Mode { kRecorded, kUnrecorded, kShapeOnly };

/// neuron:0 records, neuron:1 does not, neuron:2 is shape-only.
c10::Device device_of(Mode mode) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(mode)};
}

void configure() {
  const Bytes hbm(std::int64_t{16} << 30);
  device::install_scope_observer();
  device::configure_devices({{new RankRecorder(0, 0, hbm, true), false},
                             {new RankRecorder(1, 1, hbm, false), false},
                             {new RankRecorder(2, 2, hbm, true), true}});
  at::set_num_threads(1);
}

Alternating against_cpu(const SmallOp& op, Mode mode) {
  constexpr int kRounds = 200;
  const int index = static_cast<int>(mode);
  device::bind_this_thread(index);
  // A graph ends now and then; its making is not what is measured.
  const auto end_graph = [index] {
    device::rank_state(static_cast<c10::DeviceIndex>(index)).recorder().cut("benchmark");
  };
  return alternate(kRounds, op.calls, op.on(c10::kCPU), op.on(device_of(mode)), end_graph);
}

void cpu(benchmark::State& state, const SmallOp& op, Mode mode) {
  for (auto _ : state) against_cpu(op, mode).report(state);
}

/// By operator: how many times the CPU's time the usual way takes. Each program measures the CPU
/// itself.
std::map<std::string, double> measure_cpu_fallback() {
  const std::string command =
      TRELLIS_BUILD_DIR "/bin/device_cpu_fallback_benchmark --benchmark_format=json 2>/dev/null";
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::array<char, 4096> buffer{};
  while (pipe && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr)
    text += buffer.data();
  std::map<std::string, double> times;
  const auto document = nlohmann::json::parse(text);
  for (const auto& run : document.at("benchmarks")) {
    const std::string name = run.at("name");
    times[name.substr(0, name.find('/'))] = run.at("ratio");
  }
  return times;
}

void cpu_fallback(benchmark::State& state, const SmallOp& op) {
  static const std::map<std::string, double> times_cpu = measure_cpu_fallback();
  for (auto _ : state) {
    const Alternating turns = against_cpu(op, Mode::kRecorded);
    state.SetIterationTime(turns.ours.minimum);
    state.counters["cpu_fallback_times_cpu"] = times_cpu.at(op.name);
    state.counters["neuron_times_cpu"] = turns.ours.minimum / turns.baseline.minimum;
    state.counters["times_faster"] =
        times_cpu.at(op.name) / (turns.ours.minimum / turns.baseline.minimum);
  }
}

void add_benchmark(const char* against, const SmallOp& op, const char* mode,
                   const std::function<void(benchmark::State&)>& body) {
  benchmark::RegisterBenchmark((std::string(op.name) + "/" + mode + "_against_" + against).c_str(),
                               body)
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kNanosecond);
}

}  // namespace
}  // namespace trellis::benchmarks

int main(int argc, char** argv) {
  using namespace trellis::benchmarks;
  configure();
  benchmark::Initialize(&argc, argv);
  for (const SmallOp& op : small_ops()) {
    add_benchmark("cpu", op, "recorded",
                  [op](benchmark::State& state) { cpu(state, op, Mode::kRecorded); });
    add_benchmark("cpu", op, "unrecorded",
                  [op](benchmark::State& state) { cpu(state, op, Mode::kUnrecorded); });
    add_benchmark("cpu", op, "shape_only",
                  [op](benchmark::State& state) { cpu(state, op, Mode::kShapeOnly); });
    add_benchmark("cpu_fallback", op, "recorded",
                  [op](benchmark::State& state) { cpu_fallback(state, op); });
  }
  benchmark::RunSpecifiedBenchmarks();
}
