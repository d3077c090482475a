// The eleven optimizers against PyTorch, transformers and NumPy (oracle.py), and every layout
// against one rank.
#include <algorithm>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "tests/trainer/optimizer/rule_cases.h"
#include "tests/trainer/optimizer/small_model.h"
#include "tests/trainer/python_oracle.h"
#include "trainer/optimizer/make_update_rule.h"

namespace trellis::trainer::update_rules_test {
namespace {

using testing_support::kRuleCases;
using testing_support::options_of;
using testing_support::RuleCase;
using testing_support::SmallModel;
using testing_support::WeightShape;

void train_step(SmallModel& model, NeuronZero1Optimizer& optimizer, int step, double lr) {
  model.backward(step);
  optimizer.reduce_gradients();
  optimizer.step(lr);
}

double worst_difference(const at::Tensor& got, const std::vector<double>& expected) {
  return (got.detach().view(-1) - at::tensor(expected, at::kDouble)).abs().max().item<double>();
}

TEST(UpdateRules, EveryStepOfEachEqualsItsOracle) {
  const auto oracle =
      testing_support::read_oracle("trainer/optimizer/oracle.py");  // "case step parameter"
  for (const RuleCase& one : kRuleCases) {
    SmallModel model({{"matrix", {6, 4}}, {"vector", {5}}, {"one_row", {1, 3}}}, ParallelState());
    NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), options_of(one));
    for (int step = 1; step <= 20; ++step) {
      train_step(model, optimizer, step, one.lr);
      for (std::size_t i = 0; i < model.parameters.size(); ++i) {
        const auto expected =
            oracle.find(one.name + " " + std::to_string(step) + " " + std::to_string(i));
        ASSERT_NE(expected, oracle.end()) << one.name;
        ASSERT_LE(worst_difference(model.parameters[i].tensor, expected->second), 1e-12)
            << one.name << " step " << step << " parameter " << i;
      }
    }
  }
}

TEST(UpdateRules, EveryOptimizerHasACase) {
  for (const OptimizerInfo& info : optimizer_table()) {
    EXPECT_TRUE(std::ranges::any_of(kRuleCases, [&](const RuleCase& one) {
      return one.name == info.name;
    })) << info.name;
  }
}

/// Rows q0–q3, k0, k1 over two ranks that both hold k0 and k1.
const std::vector<PartitionBlock> kReplicatedKeys = {{{{0, 4}}, 1}, {{{4, 2}, {4, 2}}, 2}};

/// Every way in which a weight is sharded: rows, columns, fused blocks, replicated heads, a sharded
/// vector, replicas, fewer rows than ranks.
const std::vector<WeightShape> kWeights = {{"weight_qkv", {6, 3}, 0, 1, true, kReplicatedKeys},
                                           {"column_parallel", {6, 5}, 0},
                                           {"row_parallel", {5, 6}, 1},
                                           {"gate_up", {8, 3}, 0, 2},
                                           {"bias", {6}, 0},
                                           {"norm", {7}, -1, 1, false},
                                           {"router", {3, 4}},
                                           {"one_row", {1, 4}}};

struct Ranks {
  int tp, dp;
  bool zero1;
};

class LayoutsOfRules : public testing::TestWithParam<Ranks> {};

TEST_P(LayoutsOfRules, EqualTheUnshardedOptimizer) {
  const auto [tp, dp, zero1] = GetParam();
  for (const RuleCase& one : kRuleCases) {
    SmallModel whole(kWeights, ParallelState());
    NeuronZero1Optimizer reference(whole.parameters, ParallelState(), options_of(one));
    for (int step = 1; step <= 4; ++step) train_step(whole, reference, step, one.lr);
    runtime::WorldOptions world;
    world.world_size = tp * dp;
    runtime::run_ranks(world, [&, tp = tp, zero1 = zero1](runtime::RankContext& rank) {
      const ParallelState parallel = ParallelState::initialize_model_parallel(rank, tp, 1);
      SmallModel model(kWeights, parallel);
      OptimizerOptions options = options_of(one);
      options.zero1 = zero1;
      options.gradients_per_step = 1;
      NeuronZero1Optimizer optimizer(model.parameters, parallel, options);
      for (int step = 1; step <= 4; ++step) train_step(model, optimizer, step, one.lr);
      for (std::size_t i = 0; i < kWeights.size(); ++i) {
        const at::Tensor expected = model.local(i, whole.parameters[i].tensor.detach());
        const double error = (model.parameters[i].tensor - expected).abs().max().item<double>();
        EXPECT_LE(error, 1e-12) << one.name << " " << kWeights[i].name << " rank " << rank.rank();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayoutsOfRules,
                         testing::Values(Ranks{1, 2, true}, Ranks{1, 4, true}, Ranks{2, 1, true},
                                         Ranks{2, 2, true}, Ranks{2, 2, false}, Ranks{2, 4, true}),
                         [](const auto& test) {
                           return "TP" + std::to_string(test.param.tp) + "DP" +
                                  std::to_string(test.param.dp) +
                                  (test.param.zero1 ? "_ZeRO1" : "");
                         });

/// Not AdamW's.
TEST(OptimizerSection, ANameAloneHasItsOwnDefaults) {
  for (const OptimizerInfo& info : optimizer_table()) {
    const auto trained = [](const OptimSection& section) {
      SmallModel model({{"matrix", {6, 4}}}, ParallelState());
      OptimizerOptions options;
      options.rule = make_update_rule(section);
      NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), options);
      for (int step = 1; step <= 3; ++step) train_step(model, optimizer, step, 1e-2);
      return model.parameters[0].tensor.detach().clone();
    };
    OptimSection named;
    named.name = info.name;
    EXPECT_TRUE(at::equal(trained(named), trained(default_optim_section(info.name)))) << info.name;
    EXPECT_EQ(with_optimizer_defaults(named).eps, info.eps) << info.name;
  }
}

TEST(OptimizerSection, EveryBrokenRuleIsNamed) {
  struct Broken {
    const char* optimizer;
    std::function<void(OptimSection&)> change;
    const char* message;
  };
  const auto set = [](const char* name, double value) {
    return [=](OptimSection& section) { section.arguments[name] = value; };
  };
  const std::vector<Broken> all = {
      {"adamw", [](OptimSection& s) { s.lr = -1; }, "model.optim.lr: must not be negative, got -1"},
      {"adamw", [](OptimSection& s) { s.weight_decay = -0.1; },
       "model.optim.weight_decay: must not be negative"},
      {"adamw", [](OptimSection& s) { s.beta1 = 1; },
       "model.optim.betas: must be in [0, 1), got 1"},
      {"adamw_fp32OptState", [](OptimSection& s) { s.beta2 = -0.5; },
       "model.optim.betas: must be in [0, 1), got -0.5"},
      {"adam", [](OptimSection& s) { s.eps = -1; }, "model.optim.eps: must not be negative"},
      {"adam", set("momentum", 0.9),
       "model.optim.momentum: is no argument of adam; its own arguments: amsgrad, capturable"},
      {"adamw", set("amsgrad", 2), "model.optim.amsgrad: must be in [0, 1]"},
      {"sgd", set("momentum", -0.1), "model.optim.momentum: must be in [0, ∞], got -0.1"},
      {"sgd", set("nesterov", 1), "model.optim.nesterov: needs a momentum above 0"},
      {"adadelta", set("rho", 1.5), "model.optim.rho: must be in [0, 1], got 1.5"},
      {"rprop", [](OptimSection& s) { s.weight_decay = 0.1; },
       "model.optim.weight_decay: rprop has none"},
      {"rprop", set("etas_1", 0.9),
       "model.optim.etas: expected 0 < etas[0] < 1 < etas[1], got [0.5, 0.9]"},
      {"rprop", set("step_sizes_0", 100), "model.optim.step_sizes: the smallest step"},
      {"novograd", [](OptimSection& s) { s.beta1 = 2; }, "model.optim.betas"},
      {"adafactor", set("relative_step", 1),
       "model.optim.relative_step: computes the learning rate by itself"},
      {"adafactor", set("warmup_init", 1), "model.optim.warmup_init: needs relative_step: True"},
      {"adafactor", [](OptimSection& s) { s.name = "AdamW"; },
       "unknown optimizer `AdamW`; expected one of: adamw, adamw_fp32OptState, adam"},
  };
  for (const Broken& broken : all) {
    OptimSection section = default_optim_section(broken.optimizer);
    broken.change(section);
    try {
      (void)make_update_rule(section);
      ADD_FAILURE() << broken.message;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(broken.message));
    }
  }
}

TEST(Adafactor, NamesAWeightOfMoreThanTwoDimensions) {
  SmallModel model({{"kernel", {2, 3, 4}}}, ParallelState());
  EXPECT_THAT(
      [&] {
        NeuronZero1Optimizer optimizer(model.parameters, ParallelState(),
                                       options_of({"adafactor", {}}));
      },
      testing::ThrowsMessage<ConfigError>(
          testing::HasSubstr("adafactor: kernel has 3 dimensions")));
}

}  // namespace
}  // namespace trellis::trainer::update_rules_test
