// Whole training runs with each optimizer and each precision: eight ranks against one.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/integration/layout_run.h"
#include "trainer/config/optimizer_table.h"

namespace trellis::trainer {
namespace {

using testing_support::Layout;
using testing_support::Outcome;
using testing_support::small_llama;
using testing_support::train;
using testing_support::worst_error;

const Layout kEightRanks{2, 2, 2, true, true};

RunConfig with_optimizer(const Layout& layout, const OptimizerInfo& info) {
  RunConfig config = small_llama(layout, "fp64", 4);
  config.data.global_batch_size = 4;
  OptimSection optim = default_optim_section(info.name);
  optim.lr = info.name == "rprop" ? 1e-4 : 3e-3;
  optim.weight_decay = info.has_weight_decay ? 0.1 : 0;
  if (info.name == "sgd") optim.arguments["momentum"] = 0.9;
  config.model.optim = optim;
  return config;
}

TEST(OptimizerLayouts, EveryOptimizerOnEightRanksEqualsOneRank) {
  for (const OptimizerInfo& info : optimizer_table()) {
    const Outcome one_rank = train(with_optimizer({}, info), {});
    for (const Layout& layout : {kEightRanks, Layout{2, 1, 2, false, false}}) {
      const Outcome outcome = train(with_optimizer(layout, info), layout);
      EXPECT_LE(worst_error(outcome, one_rank), 1e-10) << info.name;
      EXPECT_TRUE(outcome.replicas_equal) << info.name;
    }
  }
}

struct Mode {
  const char* name;
  PrecisionSection precision;
  double tolerance;  ///< of losses, relative to fp32
};

std::vector<Mode> modes() {
  const auto mode = [](const char* name, const char* type, bool bf16, bool autocast, bool rounding,
                       bool masters) {
    return Mode{name,
                {.type = type,
                 .weights_bf16 = bf16,
                 .autocast = autocast,
                 .stochastic_rounding = rounding,
                 .master_weights = masters,
                 .fp32_grad_acc = masters},
                0.02};
  };
  std::vector<Mode> all = {
      mode("mixed_precision", "mixed_precision", true, false, false, true),
      mode("mixed_precisionSR", "mixed_precisionSR", true, false, true, true),
      mode("bf16SR", "bf16SR", true, false, true, false),
      mode("autocast over fp32 weights", "autocast", false, true, false, false),
      mode("autocast over bf16 weights", "autocast", true, true, false, true),
      mode("manual: bf16 and nothing else", "manual", true, false, false, false)};
  all.push_back(all.front());
  all.back().name = "mixed_precision, sums over TP in fp32";
  all.back().precision.parallel_layers_reduce_dtype = "fp32";
  return all;
}

TEST(PrecisionModes, FollowFp32AndKeepReplicasEqual) {
  constexpr std::int64_t kSteps = 6;
  const auto config_of = [](const Layout& layout) {
    RunConfig config = small_llama(layout, "fp32", kSteps);
    config.data.global_batch_size = 4;
    return config;
  };
  const Outcome fp32 = train(config_of({}), {});
  for (const Mode& mode : modes()) {
    for (const Layout& layout : {Layout{}, kEightRanks, Layout{2, 1, 2, false, false}}) {
      RunConfig config = config_of(layout);
      config.precision = mode.precision;
      const Outcome outcome = train(config, layout);
      for (std::size_t i = 0; i < fp32.steps.size(); ++i) {
        EXPECT_NEAR(outcome.steps[i].loss, fp32.steps[i].loss, mode.tolerance * fp32.steps[i].loss)
            << mode.name << " step " << i;
      }
      EXPECT_TRUE(outcome.replicas_equal) << mode.name;
    }
  }
}

TEST(PrecisionModes, AutocastComputesInBf16ButKeepsFp32Weights) {
  RunConfig config = small_llama({}, "autocast", 2);
  config.precision.weights_bf16 = config.precision.master_weights = config.precision.fp32_grad_acc =
      false;
  config.precision.autocast = true;
  const Outcome with = train(config, {});
  config.precision.autocast = false;
  const Outcome without = train(config, {});
  EXPECT_EQ(with.weights.begin()->second.scalar_type(), at::kFloat);
  EXPECT_NE(with.steps[0].loss, without.steps[0].loss) << "matrix products lose bits";
}

}  // namespace
}  // namespace trellis::trainer
