// Which gradients travel together, when, and that neither changes a bit; norms of weights, moving
// averages.
#include <cmath>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/ranks/world.h"
#include "tests/trainer/optimizer/small_model.h"

namespace trellis::trainer::buckets_test {
namespace {

using testing::ElementsAre;
using testing_support::SmallModel;
using testing_support::WeightShape;

std::vector<std::vector<std::string>> names_of(
    const std::vector<std::vector<Parameter*>>& buckets) {
  std::vector<std::vector<std::string>> names;
  for (const auto& bucket : buckets) {
    names.emplace_back();
    for (const Parameter* parameter : bucket) names.back().push_back(parameter->name);
  }
  return names;
}

TEST(BucketPlan, ClosesABucketAtTheCapAndGivesALargeGradientItsOwn) {
  // Bytes in fp32, in backward's order: d 80, c 400, b 40, a 60.
  SmallModel model({{"a", {15}}, {"b", {10}}, {"c", {100}}, {"d", {20}}}, ParallelState(),
                   at::kFloat);
  const auto plan = [&](std::int64_t cap) {
    return names_of(plan_buckets(model.parameters, at::kFloat, cap, 1));
  };
  EXPECT_THAT(plan(1000), ElementsAre(ElementsAre("d", "c", "b", "a")));
  EXPECT_THAT(plan(100), ElementsAre(ElementsAre("d"), ElementsAre("c"), ElementsAre("b", "a")));
  EXPECT_THAT(plan(99),
              ElementsAre(ElementsAre("d"), ElementsAre("c"), ElementsAre("b"), ElementsAre("a")));
  EXPECT_THAT(plan(480), ElementsAre(ElementsAre("d", "c"), ElementsAre("b", "a")));
}

TEST(BucketPlan, CountsBytesOfTheWiderTypeAndSeparatesTypesAndKinds) {
  SmallModel model({{"half", {100}}, {"norm", {4}, -1, 1, false}, {"other_half", {100}}},
                   ParallelState(), at::kBFloat16);
  model.parameters[1].tensor = at::zeros({4}).requires_grad_();
  EXPECT_THAT(names_of(plan_buckets(model.parameters, at::kBFloat16, 400, 1)),
              ElementsAre(ElementsAre("other_half", "half"), ElementsAre("norm")));
  EXPECT_THAT(names_of(plan_buckets(model.parameters, at::kFloat, 400, 1)),
              ElementsAre(ElementsAre("other_half"), ElementsAre("norm"), ElementsAre("half")));
  model.parameters[2].shared = true;
  EXPECT_EQ(plan_buckets(model.parameters, at::kBFloat16, 400, 1).size(), 3u)
      << "tied copies are counted separately";
}

TEST(BucketCapsOfARun, AreNxDsUnlessTheFileOrTheEnvironmentSaysOtherwise) {
  RunConfig config;
  EXPECT_EQ(bucket_caps(config).reduce_scatter, 130'000'000);
  EXPECT_EQ(bucket_caps(config).all_reduce, 512'000'000);
  config.precision.type = "autocast";
  EXPECT_EQ(bucket_caps(config).reduce_scatter, 65'000'000)
      << "bf16 weights, fp32 masters, no global down-cast";
  config.bucket_size_collectives_mb = 1024;
  EXPECT_EQ(bucket_caps(config).all_reduce, 1'024'000'000);
  setenv("ALL_GATHER_REDUCE_SCATTER_BUCKET_CAP_MB", "7", 1);
  setenv("ALLREDUCE_BUCKET_CAP_MB", "9", 1);
  EXPECT_EQ(bucket_caps(config).reduce_scatter, 7'000'000);
  EXPECT_EQ(bucket_caps(config).all_reduce, 9'000'000);
  for (const char* wrong : {"", "0", "-3", "12MB", "many"}) {
    setenv("ALLREDUCE_BUCKET_CAP_MB", wrong, 1);
    EXPECT_THAT([&] { (void)bucket_caps(config); },
                testing::ThrowsMessage<ConfigError>(testing::HasSubstr(
                    "ALLREDUCE_BUCKET_CAP_MB: expected a number of megabytes above 0")));
  }
}

const std::vector<WeightShape> kWeights = {{"column_parallel", {6, 5}, 0},
                                           {"row_parallel", {5, 6}, 1},
                                           {"norm", {7}, -1, 1, false},
                                           {"router", {3, 4}}};

struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<double> norms;
};

/// Three steps of four micro-batches whose gradients differ by rank.
Trained train(runtime::RankContext& rank, const ParallelState& parallel, OptimizerOptions options) {
  SmallModel model(kWeights, parallel, at::kFloat);
  model.parameters[2].sequence_parallel_enabled = parallel.get_tensor_model_parallel_size() > 1;
  options.max_grad_norm = 0.5;
  NeuronZero1Optimizer optimizer(model.parameters, parallel, options);
  Trained run;
  for (int step = 1; step <= 3; ++step) {
    for (int micro_batch = 0; micro_batch < 4; ++micro_batch)
      model.backward(step + micro_batch, 1 + 0.3 * parallel.get_data_parallel_rank());
    optimizer.reduce_gradients();
    run.norms.push_back(optimizer.step(0.01).item<double>());
  }
  for (const Parameter& parameter : model.parameters)
    run.weights.push_back(parameter.tensor.detach().clone());
  EXPECT_EQ(rank.world_size(),
            parallel.get_tensor_model_parallel_size() * parallel.get_data_parallel_size());
  return run;
}

TEST(Overlap, AndBucketSizesChangeNoBit) {
  for (const bool zero1 : {true, false}) {
    runtime::WorldOptions world;
    world.world_size = 4;
    runtime::run_ranks(world, [&](runtime::RankContext& rank) {
      const ParallelState parallel = ParallelState::initialize_model_parallel(rank, 2, 1);
      OptimizerOptions options;
      options.zero1 = zero1;
      const Trained expected = train(rank, parallel, options);
      for (const std::int64_t cap : {std::int64_t{1}, std::int64_t{150}, std::int64_t{1} << 30}) {
        for (const int gradients_per_step : {0, 4}) {
          options.caps = {cap, cap};
          options.gradients_per_step = gradients_per_step;
          const Trained run = train(rank, parallel, options);
          for (std::size_t i = 0; i < kWeights.size(); ++i) {
            const bool same_buckets = cap > 1000;
            if (same_buckets) {
              EXPECT_TRUE(run.weights[i].equal(expected.weights[i])) << kWeights[i].name;
            }
            EXPECT_TRUE(at::allclose(run.weights[i], expected.weights[i], 1e-5, 1e-6))
                << "the norm is summed in another order";
          }
          if (cap > 1000) {
            EXPECT_EQ(run.norms, expected.norms);
          }
        }
      }
    });
  }
}

TEST(Overlap, StartsBeforeBackwardEnds) {
  runtime::WorldOptions world;
  world.world_size = 2;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    const ParallelState parallel = ParallelState::initialize_model_parallel(rank, 1, 1);
    SmallModel model({{"first", {4}}, {"last", {4}}}, parallel, at::kFloat);
    OptimizerOptions options;
    options.caps = {16, 16};
    options.gradients_per_step = 1;
    NeuronZero1Optimizer optimizer(model.parameters, parallel, options);
    model.parameters[1].tensor.sum().backward();  // its bucket is complete: a second gradient comes
                                                  // too late
    EXPECT_THAT([&] { model.parameters[1].tensor.sum().backward(); },
                testing::ThrowsMessage<c10::Error>(
                    testing::HasSubstr("last got more than the expected 1 gradients")));
    model.parameters[0].tensor.sum().backward();
    optimizer.reduce_gradients();
    EXPECT_NEAR(optimizer.step(0).item<double>(), std::sqrt(8.0), 1e-6);
  });
}

/// One bucket's all-gather takes at most cap / DP from each rank.
TEST(BucketPlan, GatherInputsStayBelowTheirShareOfTheCap) {
  SmallModel model({{"a", {64, 4}}, {"b", {32, 4}}, {"c", {16, 8}}, {"d", {128}}}, ParallelState(),
                   at::kBFloat16);
  const std::int64_t cap = 1200;
  for (const int dp : {2, 4, 8}) {
    for (const auto& bucket : plan_buckets(model.parameters, at::kFloat, cap, dp)) {
      std::int64_t elements = 0;
      for (const Parameter* parameter : bucket) elements += parameter->tensor.numel();
      EXPECT_LE(elements / dp * 2, cap / dp);
    }
  }
}

TEST(BucketPlan, CountsGradientsAsTheyTravelPaddedForTheGroup) {
  // Bytes in fp32, in backward's order, on 8 ranks: b 10 rows of 2, padded to 16; a 16 rows of 2.
  SmallModel model({{"a", {16, 2}}, {"b", {10, 2}}}, ParallelState(), at::kFloat);
  const auto plan = [&](std::int64_t cap, int dp) {
    return names_of(plan_buckets(model.parameters, at::kFloat, cap, dp));
  };
  EXPECT_THAT(plan(208, 1), ElementsAre(ElementsAre("b", "a")));
  EXPECT_THAT(plan(208, 8), ElementsAre(ElementsAre("b"), ElementsAre("a")));
  EXPECT_THAT(plan(256, 8), ElementsAre(ElementsAre("b", "a")));
}

TEST(ParameterNorm, IsThatOfTheUnshardedModelOnEveryLayout) {
  const std::vector<PartitionBlock> replicated_keys = {{{{0, 4}}, 1}, {{{4, 2}, {4, 2}}, 2}};
  std::vector<WeightShape> weights = kWeights;
  weights.push_back({"weight_qkv", {6, 3}, 0, 1, true, replicated_keys});
  SmallModel whole(weights, ParallelState());
  double squares = 0;
  for (const Parameter& parameter : whole.parameters)
    squares += parameter.tensor.square().sum().item<double>();
  for (const auto& [tp, pp, dp] :
       {std::tuple{1, 1, 1}, {2, 1, 1}, {1, 1, 2}, {2, 1, 2}, {1, 2, 1}, {2, 2, 2}}) {
    runtime::WorldOptions world;
    world.world_size = tp * pp * dp;
    runtime::run_ranks(world, [&, tp = tp, pp = pp](runtime::RankContext& rank) {
      const ParallelState parallel = ParallelState::initialize_model_parallel(rank, tp, pp);
      SmallModel model(weights, parallel);
      // A second stage holds the tied copy of the router and nothing else.
      const bool second = parallel.get_pipeline_model_parallel_rank() == 1;
      while (second && model.parameters.size() > 4) model.parameters.pop_back();
      while (second && model.parameters.size() > 1) model.parameters.pop_front();
      if (second) model.parameters.front().shared = true;
      EXPECT_NEAR(parameter_norm(model.parameters, parallel).item<double>(), std::sqrt(squares),
                  1e-12)
          << tp << pp;
    });
  }
}

TEST(Ema, FollowsItsFormulaOnShardsAndSwapsBack) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    for (const int dp : {1, 2, 4}) {
      runtime::WorldOptions world;
      world.world_size = dp;
      runtime::run_ranks(world, [&](runtime::RankContext& rank) {
        const ParallelState parallel = ParallelState::initialize_model_parallel(rank, 1, 1);
        SmallModel model(kWeights, ParallelState(), dtype);
        OptimizerOptions options;
        options.master_dtype = options.grad_dtype = dtype;
        options.ema = EmaSection{.decay = 0.75, .apply_ema_every_n_steps = 2, .start_step = 3};
        NeuronZero1Optimizer optimizer(model.parameters, parallel, options);
        const at::ScalarType average_dtype = c10::promoteTypes(dtype, at::kFloat);
        at::Tensor expected = model.parameters[0].tensor.detach().to(
            average_dtype, /*non_blocking=*/false, /*copy=*/true);
        for (int step = 1; step <= 6; ++step) {
          model.backward(step);
          optimizer.reduce_gradients();
          optimizer.step(0.05);
          // Steps 4 and 6: from step 3 on, every second one.
          if (step == 4 || step == 6)
            expected =
                0.75 * expected + 0.25 * model.parameters[0].tensor.detach().to(average_dtype);
        }
        const at::Tensor weights = model.parameters[0].tensor.detach().clone();
        optimizer.swap_ema_weights();
        EXPECT_TRUE(at::allclose(model.parameters[0].tensor, expected.to(dtype),
                                 dtype == at::kDouble ? 1e-14 : 1.0 / 128, 0));
        EXPECT_FALSE(model.parameters[0].tensor.equal(weights));
        model.backward(7);
        optimizer.reduce_gradients();
        EXPECT_THAT([&] { optimizer.step(0.05); },
                    testing::ThrowsMessage<c10::Error>(
                        testing::HasSubstr("call swap_ema_weights() first")));
        optimizer.swap_ema_weights();
        EXPECT_TRUE(model.parameters[0].tensor.equal(weights)) << "bit for bit";
      });
    }
  }
}

TEST(Ema, SwapsBackStochasticallyRoundedMasters) {
  SmallModel model(kWeights, ParallelState(), at::kBFloat16);
  OptimizerOptions options;
  options.stochastic_rounding = true;
  options.ema = EmaSection{};
  NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), options);
  model.backward(1);
  optimizer.reduce_gradients();
  optimizer.step(0.05);
  const at::Tensor weights = model.parameters[0].tensor.detach().clone();
  optimizer.swap_ema_weights();
  optimizer.swap_ema_weights();
  EXPECT_TRUE(model.parameters[0].tensor.equal(weights));
}

}  // namespace
}  // namespace trellis::trainer::buckets_test
