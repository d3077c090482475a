// Every optimizer and rounding on emulated NeuronCores: the bits of the CPU with data, the same
// operations without.
#include <gtest/gtest.h>

#include "runtime/groups/device_plugin.h"
#include "runtime/ranks/world.h"
#include "tests/trainer/optimizer/rule_cases.h"
#include "tests/trainer/optimizer/small_model.h"

namespace trellis::trainer::neuron_test {
namespace {

using testing_support::kRuleCases;
using testing_support::options_of;
using testing_support::SmallModel;
using testing_support::WeightShape;

const std::vector<WeightShape> kWeights = {{"column_parallel", {6, 5}, 0},
                                           {"row_parallel", {5, 6}, 1},
                                           {"norm", {7}, -1, 1, false},
                                           {"one_row", {1, 4}}};

runtime::WorldOptions emulated(int world_size, bool shape_only) {
  const auto& plugin =
      runtime::DevicePlugin::load(std::string(TRELLIS_BUILD_DIR) + "/lib/libtrellis_neuron.so");
  const std::string options =
      R"({"schema": "trellis.device_options/1", "instance": "trn1.32xlarge", "world_size": )" +
      std::to_string(world_size) + R"(, "shape_only": )" + (shape_only ? "true}" : "false}");
  plugin.check(plugin.api().configure(options.c_str()));
  runtime::WorldOptions world;
  world.world_size = world_size;
  world.device_type = plugin.api().device_type;
  world.plugin = &plugin;
  world.shape_only = shape_only;
  return world;
}

/// Two steps on TP 2 × DP 2, then the moving average; the weights of each rank.
using Weights = std::vector<std::vector<at::Tensor>>;
Weights train(runtime::WorldOptions world, at::ScalarType dtype, OptimizerOptions options) {
  world.world_size = 4;
  options.gradients_per_step = 1;
  options.ema = EmaSection{};
  Weights weights(4);
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState parallel = ParallelState::initialize_model_parallel(rank, 2, 1);
    SmallModel model(kWeights, parallel, dtype, rank.device());
    NeuronZero1Optimizer optimizer(model.parameters, parallel, options);
    const auto keep = [&] {
      for (const Parameter& parameter : model.parameters)
        weights[static_cast<std::size_t>(rank.rank())].push_back(
            parameter.tensor.detach().cpu().clone());
    };
    for (int step = 1; step <= 2; ++step) {
      model.backward(step);
      optimizer.reduce_gradients();
      optimizer.step(0.01);
      (void)parameter_norm(model.parameters, parallel);
    }
    keep();
    optimizer.swap_ema_weights();
    keep();
  });
  return weights;
}

struct Variant {
  std::string name;
  at::ScalarType dtype;
  OptimizerOptions options;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const auto& one : kRuleCases) {
    all.push_back({one.name, at::kFloat, options_of(one)});
    all.back().options.grad_dtype = all.back().options.master_dtype = at::kFloat;
  }
  for (const bool masters : {true, false}) {
    Variant variant{masters ? "mixed_precisionSR" : "bf16SR", at::kBFloat16, {}};
    variant.options.grad_dtype = variant.options.master_dtype =
        masters ? at::kFloat : at::kBFloat16;
    variant.options.stochastic_rounding = true;
    all.push_back(variant);
  }
  return all;
}

TEST(OnNeuron, EveryOptimizerGivesTheBitsOfTheCpu) {
  const runtime::WorldOptions neuron = emulated(4, false);
  for (const Variant& variant : variants()) {
    const Weights expected = train({}, variant.dtype, variant.options),
                  got = train(neuron, variant.dtype, variant.options);
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      ASSERT_EQ(got[rank].size(), 2 * kWeights.size());
      for (std::size_t i = 0; i < got[rank].size(); ++i)
        EXPECT_TRUE(got[rank][i].equal(expected[rank][i])) << variant.name << " " << i;
    }
  }
}

TEST(OnNeuron, EveryOptimizerRunsWithoutData) {
  const runtime::WorldOptions neuron = emulated(4, true);
  for (const Variant& variant : variants()) {
    const Weights got = train(neuron, variant.dtype, variant.options);
    for (std::size_t i = 0; i < kWeights.size(); ++i)
      EXPECT_EQ(got[0][i].scalar_type(), variant.dtype) << variant.name;
  }
}

}  // namespace
}  // namespace trellis::trainer::neuron_test
