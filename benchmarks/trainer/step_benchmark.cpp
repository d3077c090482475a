// A whole training step (data, forward, backward, clip, optimizer) of a 2-layer Llama, d 512,
// sequence 256, with recording on, and the same step with device cpu as the baseline of the same
// run. Goal: at most 1.15 times. The simulation of the step is not part of it: simulate_step has a
// separate row.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/support/alternating.h"
#include "runtime/device_plugin.h"
#include "runtime/world.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <nlohmann/json.hpp>

namespace trellis::benchmarks {
namespace {

constexpr std::int64_t kSequence = 256;
constexpr std::int64_t kVocabulary = 2048;
constexpr std::int64_t kStepsPerTurn =
    5;  ///< the first of a turn makes optimizer state and is not counted
constexpr int kTurns = 6;

trainer::RunConfig small_llama(const char* precision) {
  trainer::RunConfig config;
  config.name = "step_benchmark";
  config.trainer.devices = 1;
  config.trainer.max_steps = kStepsPerTurn;
  config.trainer.gradient_clip_val = 1.0;
  config.precision.type = precision;
  trainer::ModelSection& model = config.model;
  model.num_layers = 2;
  model.hidden_size = 512;
  model.ffn_hidden_size = 1408;
  model.num_attention_heads = 8;
  model.num_kv_heads = 8;
  model.encoder_seq_length = kSequence;
  model.max_position_embeddings = kSequence;
  model.vocab_size = kVocabulary;
  return config;
}

class RandomTokens final : public trainer::DataModule {
 public:
  [[nodiscard]] std::vector<trainer::MicroBatch> micro_batches(std::int64_t step,
                                                               int) const override {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
    const at::Tensor tokens = at::randint(0, kVocabulary, {1, kSequence + 1}, generator, at::kLong);
    return {
        {tokens.narrow(1, 0, kSequence).contiguous(), tokens.narrow(1, 1, kSequence).contiguous()}};
  }
  [[nodiscard]] std::int64_t num_tokens() const override { return 1 << 20; }
  [[nodiscard]] std::string description() const override { return "random tokens"; }
};

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

/// CPU seconds of each counted step of a fresh run.
std::vector<double> step_seconds(const char* precision, bool on_neuron) {
  runtime::WorldOptions world;
  if (on_neuron) {
    world.device_type = "neuron";
    world.plugin = &plugin();
  }
  std::vector<double> seconds;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    trainer::Trainer trainer(small_llama(precision), rank, std::make_shared<RandomTokens>());
    double before = -1;
    trainer.fit([&](const trainer::StepResult&) {
      const double now = thread_seconds();
      if (before >= 0) seconds.push_back(now - before);
      before = now;
    });
  });
  return seconds;
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
      for (double seconds : step_seconds(precision, false)) cpu.push_back(seconds);
      for (double seconds : step_seconds(precision, true)) neuron.push_back(seconds);
    }
    Alternating{timing_of(cpu), timing_of(neuron)}.report(state);
    state.counters["bytes_per_recorded_op"] = bytes_per_recorded_op();
  }
}

/// The last step again: programs are compiled and timed already, as in all steps of a training but
/// the first.
void simulate_step(benchmark::State& state) {
  step_seconds("mixed_precision", true);
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
