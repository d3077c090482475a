// The numbers that each precision keeps and loses: stochastic rounding, masters, accumulation, the
// dtype of communications, memory.
#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "tests/trainer/optimizer/small_model.h"
#include "trainer/optimizer/make_update_rule.h"

namespace trellis::trainer::precision_test {
namespace {

using testing_support::SmallModel;
using testing_support::WeightShape;

const std::vector<WeightShape> kWeights = {{"column_parallel", {6, 5}, 0},
                                           {"row_parallel", {5, 6}, 1},
                                           {"gate_up", {8, 3}, 0, 2},
                                           {"norm", {7}, -1, 1, false}};

OptimizerOptions bf16_sr() {
  OptimizerOptions options;
  options.grad_dtype = options.master_dtype = at::kBFloat16;
  options.stochastic_rounding = true;
  options.seed = 3;
  return options;
}

OptimizerOptions mixed() {
  OptimizerOptions options;
  options.grad_dtype = options.master_dtype = at::kFloat;
  return options;
}

/// One parameter that a whole rank holds, as a shard.
struct OneShard {
  explicit OneShard(std::int64_t rows, std::int64_t columns, const std::string& name = "weight") {
    parameter.name = name;
    parameter.tensor = at::zeros({rows, columns});
    layout.slots.push_back({&parameter, 0, rows * columns, 0, rows, columns, {}});
    layout.elements = rows * columns;
  }
  Parameter parameter;
  ShardLayout layout;
};

TEST(StochasticRounding, IsUnbiasedAndChoosesANeighbour) {
  const OneShard shard(500, 400);
  const StochasticRounding rounding(shard.layout, 1, at::kCPU);
  // bf16 has 7 bits after the point: neighbours of 1 + x are 1 and 1 + 1/128.
  for (const double fraction : {0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.999}) {
    for (const double sign : {1.0, -1.0}) {
      const double value = sign * (1 + fraction / 128);
      const at::Tensor rounded =
          rounding.round(shard.layout, at::full({200'000}, value, at::kFloat), 7, "weights")
              .to(at::kDouble);
      EXPECT_TRUE(((rounded == sign) | (rounded == sign * (1 + 1.0 / 128))).all().item<bool>())
          << value;
      const double share = (rounded != sign).to(at::kDouble).mean().item<double>();
      EXPECT_NEAR(share, fraction, 5 * std::sqrt(fraction * (1 - fraction) / 200'000) + 1e-12)
          << "five standard deviations";
    }
  }
}

TEST(StochasticRounding, KeepsWhatIsExactOrNotFinite) {
  const OneShard shard(1, 6);
  const StochasticRounding rounding(shard.layout, 1, at::kCPU);
  const double infinity = INFINITY;
  const at::Tensor exact =
      at::tensor({0.0, -2.5, 1.0, infinity, -infinity, 3e38}, at::kDouble).to(at::kBFloat16);
  EXPECT_TRUE(rounding.round(shard.layout, exact.to(at::kFloat), 1, "weights").equal(exact));
  const at::Tensor not_a_number = at::full({6}, std::nan(""), at::kFloat);
  EXPECT_TRUE(rounding.round(shard.layout, not_a_number, 1, "weights").isnan().all().item<bool>());
}

TEST(StochasticRounding, BitsDependOnSeedStepParameterAndStream) {
  const OneShard shard(40, 50), other(40, 50, "other");
  const at::Tensor half = at::full({2000}, 1 + 0.5 / 128, at::kFloat);
  const auto bits = [&](const OneShard& of, std::int64_t seed, std::int64_t step,
                        const char* stream) {
    return StochasticRounding(of.layout, seed, at::kCPU).round(of.layout, half, step, stream);
  };
  const at::Tensor first = bits(shard, 1, 1, "weights");
  EXPECT_TRUE(first.equal(bits(shard, 1, 1, "weights")));
  // Independent draws agree in half of the elements.
  for (const at::Tensor& changed : {bits(shard, 2, 1, "weights"), bits(shard, 1, 2, "weights"),
                                    bits(other, 1, 1, "weights"), bits(shard, 1, 1, "exp_avg")}) {
    EXPECT_NEAR(first.eq(changed).to(at::kDouble).mean().item<double>(), 0.5, 0.06);
  }
  // Neighbours in rows and columns are independent as well.
  const at::Tensor matrix = first.view({40, 50});
  EXPECT_NEAR(
      matrix.narrow(0, 1, 39).eq(matrix.narrow(0, 0, 39)).to(at::kDouble).mean().item<double>(),
      0.5, 0.06);
  EXPECT_NEAR(
      matrix.narrow(1, 1, 49).eq(matrix.narrow(1, 0, 49)).to(at::kDouble).mean().item<double>(),
      0.5, 0.06);
}

std::vector<at::Tensor> train(SmallModel& model, const ParallelState& parallel,
                              const OptimizerOptions& options, int steps, double lr) {
  NeuronZero1Optimizer optimizer(model.parameters, parallel, options);
  for (int step = 1; step <= steps; ++step) {
    model.backward(step);
    optimizer.reduce_gradients();
    optimizer.step(lr);
  }
  std::vector<at::Tensor> weights;
  for (const Parameter& parameter : model.parameters)
    weights.push_back(parameter.tensor.detach().clone());
  return weights;
}

/// bf16 gradients of DP ranks are equal here, so that their average is exact and the layouts may be
/// compared bit for bit.
TEST(StochasticRounding, EveryLayoutRoundsTheSameWeightsAlike) {
  SmallModel whole(kWeights, ParallelState(), at::kBFloat16);
  const auto expected = train(whole, ParallelState(), bf16_sr(), 3, 0.01);
  for (const auto& [tp, dp, zero1] :
       {std::tuple{1, 2, true}, {2, 1, true}, {2, 2, true}, {2, 2, false}, {1, 4, true}}) {
    runtime::WorldOptions world;
    world.world_size = tp * dp;
    runtime::run_ranks(world, [&, tp = tp, zero1 = zero1](runtime::RankContext& rank) {
      const ParallelState parallel = ParallelState::initialize_model_parallel(rank, tp, 1);
      SmallModel model(kWeights, parallel, at::kBFloat16);
      OptimizerOptions options = bf16_sr();
      options.zero1 = zero1;
      const auto weights = train(model, parallel, options, 3, 0.01);
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_TRUE(weights[i].equal(model.local(i, expected[i]))) << kWeights[i].name;
    });
  }
}

/// 400 steps of a fifth of the distance to the next bf16 number: nearest rounding stays, stochastic
/// rounding arrives on average.
TEST(StochasticRounding, DoesNotLoseSmallUpdates) {
  const auto mean_after = [](bool stochastic) {
    ParameterList parameters(1);
    parameters[0].name = "weight";
    parameters[0].tensor = at::ones({64, 64}, at::kBFloat16).requires_grad_();
    OptimSection sgd;
    sgd.name = "sgd";
    OptimizerOptions options = bf16_sr();
    options.rule = make_update_rule(sgd);
    options.stochastic_rounding = stochastic;
    NeuronZero1Optimizer optimizer(parameters, ParallelState(), options);
    for (int step = 0; step < 400; ++step) {
      parameters[0].tensor.sum().backward();
      optimizer.reduce_gradients();
      optimizer.step(-0.2 / 128);
    }
    return parameters[0].tensor.detach().to(at::kDouble).mean().item<double>();
  };
  EXPECT_EQ(mean_after(false), 1);
  EXPECT_NEAR(mean_after(true), 1 + 400 * 0.2 / 128, 0.01);
}

TEST(MixedPrecisionSR, RoundsTheSameMastersToOtherWeights) {
  SmallModel nearest(kWeights, ParallelState(), at::kBFloat16),
      stochastic(kWeights, ParallelState(), at::kBFloat16);
  OptimizerOptions with_rounding = mixed();
  with_rounding.stochastic_rounding = true;
  const auto a = train(nearest, ParallelState(), mixed(), 5, 0.01),
             b = train(stochastic, ParallelState(), with_rounding, 5, 0.01);
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i].to(at::kDouble) - b[i].to(at::kDouble))
                                    .abs()
                                    .div(a[i].to(at::kDouble).abs())
                                    .max()
                                    .item<double>());
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(largest, 1.0 / 128) << "masters are not affected: never further than the neighbour";
}

/// Relative error of the sum of 64 micro-batches against fp64.
double accumulation_error(at::ScalarType grad_dtype) {
  ParameterList parameters(1);
  parameters[0].name = "weight";
  parameters[0].tensor = at::zeros({50, 20}, at::kBFloat16).requires_grad_();
  OptimizerOptions options = mixed();
  options.grad_dtype = grad_dtype;
  const NeuronZero1Optimizer optimizer(parameters, ParallelState(), options);
  at::Tensor exact = at::zeros({50, 20}, at::kDouble);
  for (std::uint64_t i = 0; i < 64; ++i) {
    const at::Tensor grad =
        at::rand({50, 20}, at::detail::createCPUGenerator(i), at::kFloat).to(at::kBFloat16);
    (parameters[0].tensor * grad).sum().backward();
    exact += grad;
  }
  return ((optimizer.main_grad(parameters[0]).to(at::kDouble) - exact).norm() / exact.norm())
      .item<double>();
}

TEST(GradientAccumulation, Fp32Beats16BitsOver64MicroBatches) {
  EXPECT_LT(accumulation_error(at::kFloat), 1e-6);
  EXPECT_GT(accumulation_error(at::kBFloat16), 1e-3);
}

TEST(ReduceDtype, RoundsOnlyWhatTravels) {
  runtime::WorldOptions world;
  world.world_size = 2;
  for (const bool zero1 : {true, false}) {
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      const ParallelState parallel = ParallelState::initialize_model_parallel(rank, 1, 1);
      const auto norm = [&](std::optional<at::ScalarType> reduce) {
        ParameterList parameters(1);
        parameters[0].name = "weight";
        parameters[0].tensor = at::zeros({2, 2}).requires_grad_();
        OptimizerOptions options = mixed();
        options.zero1 = zero1;
        options.reduce_dtype = reduce;
        NeuronZero1Optimizer optimizer(parameters, parallel, options);
        (parameters[0].tensor * (1 + 1.0 / 1024)).sum().backward();
        optimizer.reduce_gradients();
        return optimizer.step(0).item<double>();
      };
      EXPECT_NEAR(norm({}), 2 * (1 + 1.0 / 1024), 1e-6);
      EXPECT_NEAR(norm(at::kBFloat16), 2, 1e-6) << "1 + 2⁻¹⁰ is 1 in bf16";
    });
  }
}

TEST(WithoutZero1, MastersAndWideGradientsAreErrors) {
  const auto message = [](at::ScalarType grads, at::ScalarType masters) -> std::string {
    SmallModel model(kWeights, ParallelState(), at::kBFloat16);
    OptimizerOptions options;
    options.zero1 = false;
    options.grad_dtype = grads;
    options.master_dtype = masters;
    try {
      const NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), options);
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message(at::kBFloat16, at::kFloat),
              testing::HasSubstr("use_master_weights: needs zero_one_enabled"));
  EXPECT_THAT(message(at::kFloat, at::kBFloat16),
              testing::HasSubstr("use_fp32_grad_acc: needs zero_one_enabled"));
  EXPECT_EQ(message(at::kBFloat16, at::kBFloat16), "");
}

/// Bytes of masters and states per rank by the formula, for two moments: ZeRO-1 divides each of
/// them by DP, padded by rows.
TEST(Memory, OfTheStatesIsTheFormula) {
  struct Expected {
    const char* name;
    OptimizerOptions options;
    const char* optimizer;
    int bytes_per_element;
  };
  OptimizerOptions plain = bf16_sr();
  plain.zero1 = false;
  for (const auto& [name, options, optimizer_name, bytes] :
       {Expected{"mixed precision: fp32 master and two moments", mixed(), "adamw", 12},
        Expected{"bf16SR: two bf16 moments", bf16_sr(), "adamw", 4},
        Expected{"fp32 states of bf16 weights", bf16_sr(), "adamw_fp32OptState", 8},
        Expected{"without ZeRO-1: not divided", plain, "adamw", 4},
        Expected{"sgd has no state: the master alone", mixed(), "sgd", 4}}) {
    const int dp = 4;
    runtime::WorldOptions world;
    world.world_size = dp;
    runtime::run_ranks(world, [&, &name = name, &given = options, &optimizer_name = optimizer_name,
                               &bytes = bytes](runtime::RankContext& rank) {
      const ParallelState parallel = ParallelState::initialize_model_parallel(rank, 1, 1);
      SmallModel model({{"a", {12, 5}}, {"b", {7, 3}}, {"c", {16}}}, parallel, at::kBFloat16);
      OptimizerOptions changed = given;
      OptimSection section;
      section.name = optimizer_name;
      changed.rule = make_update_rule(section);
      const NeuronZero1Optimizer optimizer(model.parameters, parallel, changed);
      std::size_t total = 0;
      optimizer.for_each_state([&](const at::Tensor& state) { total += state.nbytes(); });
      const std::int64_t share = changed.zero1 ? 3 * 5 + 2 * 3 + 4 : 12 * 5 + 7 * 3 + 16;
      EXPECT_EQ(total, static_cast<std::size_t>(share * bytes)) << name;
    });
  }
}

/// Memory of a rank, for the first and the last rank of a group: gradients do not depend on DP;
/// shards are whole rows, one at least.
TEST(Memory, OfARankIsTheFormulaFromOneReplicaTo4096) {
  for (const int dp : {1, 2, 3, 4, 5, 64, 96, 100, 256, 768, 1000, 1024, 4095, 4096}) {
    for (const int rank : {0, dp - 1}) {
      ParallelGroup data;
      data.rank = rank;
      data.size = dp;
      const ParallelState parallel({}, {}, data);
      SmallModel model(
          {{"qkv", {768, 5}}, {"vocabulary", {100, 3}}, {"norm", {4096}, -1, 1, false}}, parallel,
          at::kBFloat16);
      const NeuronZero1Optimizer optimizer(model.parameters, parallel, mixed());
      std::int64_t gradients = 0, states = 0;
      optimizer.for_each_gradient([&](const at::Tensor& grad) { gradients += grad.numel(); });
      optimizer.for_each_state([&](const at::Tensor& state) { states += state.numel(); });
      const auto rows = [dp](std::int64_t n) { return (n + dp - 1) / dp; };
      EXPECT_EQ(gradients, 768 * 5 + 100 * 3 + 4096) << dp;
      EXPECT_EQ(states, 3 * (rows(768) * 5 + rows(100) * 3 + rows(4096))) << dp << " rank " << rank;
    }
  }
}

TEST(ModelDtype, FollowsTheTableOfPrecisions) {
  PrecisionSection precision;
  for (const auto& [type, bf16, expected] : {std::tuple{"mixed_precision", true, at::kBFloat16},
                                             {"mixed_precisionSR", true, at::kBFloat16},
                                             {"bf16SR", true, at::kBFloat16},
                                             {"fp32", false, at::kFloat},
                                             {"autocast", true, at::kBFloat16},
                                             {"autocast", false, at::kFloat},
                                             {"manual", false, at::kFloat},
                                             {"fp64", false, at::kDouble}}) {
    precision.type = type;
    precision.weights_bf16 = bf16;
    EXPECT_EQ(model_dtype(precision), expected) << type;
    precision.parallel_layers_reduce_dtype = "fp32";
    EXPECT_EQ(reduce_dtype(precision), expected == at::kDouble ? at::kDouble : at::kFloat) << type;
    precision.parallel_layers_reduce_dtype = "bf16";
    const bool one_type = std::string_view(type) == "fp32" || std::string_view(type) == "fp64";
    EXPECT_EQ(reduce_dtype(precision), one_type ? expected : at::kBFloat16)
        << type << ": what is written is done";
  }
}

TEST(OptimizerOptionsOfARun, MastersAndFp32AccumulationNeedBothTheFlagAndZero1) {
  for (const bool flag : {true, false}) {
    for (const bool zero1 : {true, false}) {
      RunConfig config;
      config.trainer.devices = 1;
      config.precision.master_weights = config.precision.fp32_grad_acc = flag;
      config.distributed_strategy.zero1 = zero1;
      const OptimizerOptions options = optimizer_options(config);
      EXPECT_EQ(options.master_dtype, flag && zero1 ? at::kFloat : at::kBFloat16);
      EXPECT_EQ(options.grad_dtype, flag && zero1 ? at::kFloat : at::kBFloat16);
    }
  }
}

}  // namespace
}  // namespace trellis::trainer::precision_test
