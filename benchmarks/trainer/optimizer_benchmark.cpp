// One update of 16 weights of 512 × 512 in fp32 on `cpu` with each update rule, and
// torch::optim::AdamW on the same weights as the baseline of the same run. Goal for adamw: at
// most 1.0 times.
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include "benchmarks/support/alternating.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/optimizer/make_update_rule.h"
#include "trainer/optimizer/stochastic_rounding.h"

namespace trellis::benchmarks {
namespace {

constexpr int kWeights = 16, kSize = 512, kRounds = 20;

/// The weights as one shard, as NeuronZero1Optimizer updates them.
struct Shard {
  Shard() {
    parameters.resize(kWeights);
    for (trainer::Parameter& parameter : parameters) {
      parameter.name = "weight" + std::to_string(layout.slots.size());
      parameter.tensor = at::randn({kSize, kSize});
      layout.slots.push_back({&parameter, layout.elements, kSize * kSize, 0, kSize, kSize, {}});
      layout.elements += kSize * kSize;
    }
  }
  std::vector<trainer::Parameter> parameters;
  trainer::ShardLayout layout;
};

/// PyTorch's weights and gradients.
struct Weights {
  Weights() {
    for (int i = 0; i < kWeights; ++i) {
      values.push_back(at::randn({kSize, kSize}).requires_grad_());
      grads.push_back(at::randn({kSize, kSize}));
      values.back().mutable_grad() = grads.back();
    }
  }
  std::vector<at::Tensor> values, grads;
};

void update(benchmark::State& state, const char* name) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);  // as a rank has
  const Shard shard;
  trainer::OptimSection section = trainer::default_optim_section(name);
  const auto rule = trainer::make_update_rule(section);
  auto states = rule->make_states(shard.layout, at::kFloat);
  const at::Tensor values = at::randn({shard.layout.elements}),
                   grad = at::randn({shard.layout.elements});
  trainer::StepNumbers numbers;
  for (const double number : rule->numbers(1, 1e-4, 0))
    numbers.push_back(at::tensor(number, at::kFloat));
  Weights weights;
  torch::optim::AdamW for_loop(weights.values, torch::optim::AdamWOptions(1e-4));
  for (auto _ : state) {
    alternate(
        kRounds, 1, [&] { for_loop.step(); },
        [&] { rule->apply(shard.layout, {values, grad, states}, numbers); }, [] {})
        .report(state);
  }
}

void round_stochastically(benchmark::State& state) {
  const Shard shard;
  const trainer::StochasticRounding rounding(shard.layout, 1, at::kCPU);
  const at::Tensor values = at::randn({shard.layout.elements});
  for (auto _ : state) benchmark::DoNotOptimize(rounding.round(shard.layout, values, 1, "weights"));
  state.counters["elements"] = static_cast<double>(shard.layout.elements);
}

BENCHMARK_CAPTURE(update, adamw, "adamw")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(update, adamw_fp32OptState, "adamw_fp32OptState")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(update, adafactor, "adafactor")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(update, novograd, "novograd")
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(round_stochastically)->Unit(benchmark::kMillisecond)->Iterations(5);

}  // namespace
}  // namespace trellis::benchmarks

BENCHMARK_MAIN();
