// The sharded optimizer against the same on one rank; what masters, wide gradients and parameter
// groups change.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/ranks/world.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"

namespace trellis::trainer::optimizer_test {
namespace {

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

/// Odd first dimensions: with two or four shards every parameter needs padding, "one_row" leaves
/// shards empty.
struct Model {
  explicit Model(at::ScalarType dtype = at::kDouble) {
    add("matrix", {7, 3}, true, dtype);
    add("norm", {5}, false, dtype);
    add("one_row", {1, 4}, true, dtype);
  }
  void add(const std::string& name, at::IntArrayRef sizes, bool decay, at::ScalarType dtype) {
    Parameter parameter;
    parameter.name = name;
    parameter.tensor = random(sizes, parameters.size()).to(dtype).requires_grad_();
    parameter.weight_decay = decay;
    parameters.push_back(std::move(parameter));
  }
  /// loss = Σ <parameter, coefficients>: the gradient is the coefficients.
  void backward(std::uint64_t seed) {
    for (Parameter& parameter : parameters) {
      (parameter.tensor *
       random(parameter.tensor.sizes(), seed++).to(parameter.tensor.scalar_type()))
          .sum()
          .backward();
    }
  }
  ParameterList parameters;
};

OptimizerOptions options(bool zero1) {
  OptimizerOptions result;
  result.weight_decay = 0.1;
  result.max_grad_norm = 0.5;
  result.zero1 = zero1;
  result.grad_dtype = result.master_dtype = at::kDouble;
  return result;
}

constexpr int kMicroBatches = 4, kSteps = 3;
std::uint64_t seed_of(int step, int sample) {
  return static_cast<std::uint64_t>(1000 * step + 10 * sample);
}

/// Each rank of `dp` takes its share of the micro-batches; gradients are means over them.
void train(Model& model, NeuronZero1Optimizer& optimizer, int dp, int dp_rank,
           std::vector<double>& norms) {
  for (int step = 0; step < kSteps; ++step) {
    for (int sample = dp_rank; sample < kMicroBatches; sample += dp)
      model.backward(seed_of(step, sample));
    optimizer.reduce_gradients();
    norms.push_back(optimizer.step(0.01).item<double>() *
                    dp);  // sums over the own share: the average over ranks is 1/dp of the total
  }
}

class Zero1 : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Zero1, EqualsOneRankAndShardsTheStates) {
  const auto [dp, zero1] = GetParam();
  // The total gradient of one rank is dp times the average: a limit that scales with it keeps the
  // clipped gradients equal.
  Model reference;
  OptimizerOptions one_rank = options(true);
  one_rank.max_grad_norm = std::nullopt;
  NeuronZero1Optimizer reference_optimizer(reference.parameters, ParallelState(), one_rank);
  std::vector<double> expected_norms;
  train(reference, reference_optimizer, 1, 0, expected_norms);
  runtime::WorldOptions world;
  world.world_size = dp;
  runtime::run_ranks(world, [&, dp = dp, zero1 = zero1](runtime::RankContext& rank) {
    const ParallelState state = ParallelState::initialize_model_parallel(rank, 1, 1);
    Model model;
    OptimizerOptions sharded = options(zero1);
    sharded.max_grad_norm = std::nullopt;
    NeuronZero1Optimizer optimizer(model.parameters, state, sharded);
    std::vector<double> norms;
    train(model, optimizer, dp, rank.rank(), norms);
    for (int i = 0; i < kSteps; ++i)
      EXPECT_NEAR(norms[static_cast<std::size_t>(i)], expected_norms[static_cast<std::size_t>(i)],
                  1e-10);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      // AdamW does not see the scale of the gradient, up to eps.
      EXPECT_TRUE(
          at::allclose(model.parameters[i].tensor, reference.parameters[i].tensor, 1e-6, 1e-7))
          << model.parameters[i].name;
    }
    std::int64_t state_elements = 0;
    optimizer.for_each_state([&](const at::Tensor& tensor) { state_elements += tensor.numel(); });
    const auto rows = [shards = zero1 ? dp : 1](int n) { return (n + shards - 1) / shards; };
    EXPECT_EQ(state_elements, 2 * (rows(7) * 3 + rows(5) + rows(1) * 4))
        << "two moments of one shard, padded by rows; no master of fp64";
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Zero1, testing::Combine(testing::Values(1, 2, 4), testing::Bool()),
                         [](const auto& test) {
                           return "DP" + std::to_string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "_ZeRO1" : "");
                         });

TEST(MasterWeights, KeepUpdatesThatAreSmallerThanTheModelsPrecision) {
  Model half(at::kBFloat16);
  OptimizerOptions mixed = options(true);
  mixed.grad_dtype = mixed.master_dtype = at::kFloat;
  mixed.weight_decay = 0;
  NeuronZero1Optimizer optimizer(half.parameters, ParallelState(), mixed);
  const at::Tensor before = half.parameters[0].tensor.detach().clone();
  const auto step = [&] {
    half.backward(1);
    optimizer.reduce_gradients();
    optimizer.step(1e-5);
  };
  step();
  EXPECT_GT(half.parameters[0].tensor.eq(before).sum().item<std::int64_t>(), 15)
      << "one step is lost in bfloat16";
  for (int i = 0; i < 2000; ++i) step();
  EXPECT_EQ(half.parameters[0].tensor.eq(before).sum().item<std::int64_t>(), 0)
      << "but not in the masters";
}

TEST(GradientAccumulation, Fp32SumsKeepWhatHalfPrecisionLoses) {
  const auto accumulated = [](at::ScalarType grad_dtype) {
    ParameterList parameters(1);
    parameters[0].tensor = at::ones({2, 2}, at::kBFloat16).requires_grad_();
    OptimizerOptions mixed = options(true);
    mixed.grad_dtype = grad_dtype;
    mixed.master_dtype = at::kFloat;
    mixed.max_grad_norm = std::nullopt;
    NeuronZero1Optimizer optimizer(parameters, ParallelState(), mixed);
    for (int i = 0; i < 1024; ++i) parameters[0].tensor.sum().backward();  // each gradient is 1
    EXPECT_FALSE(parameters[0].tensor.grad().defined())
        << "the half-precision gradient is freed at once";
    optimizer.reduce_gradients();
    return optimizer.step(0).item<double>() / 2;  // norm of four equal numbers
  };
  EXPECT_EQ(accumulated(at::kFloat), 1024);
  EXPECT_EQ(accumulated(at::kBFloat16), 256);
}

TEST(WeightDecay, LeavesTheExemptParametersAlone) {
  Model model;
  const at::Tensor norm_before = model.parameters[1].tensor.detach().clone(),
                   matrix_before = model.parameters[0].tensor.detach().clone();
  OptimizerOptions decay = options(true);
  decay.max_grad_norm = std::nullopt;
  NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), decay);
  for (Parameter& parameter : model.parameters) (parameter.tensor * 0).sum().backward();
  optimizer.reduce_gradients();
  optimizer.step(0.5);
  EXPECT_TRUE(model.parameters[1].tensor.equal(norm_before));
  EXPECT_TRUE(at::allclose(model.parameters[0].tensor, matrix_before * 0.95, 1e-14, 0));
}

TEST(WeightDecay, ReachesNormsAndBiasesWhenAskedFor) {
  Model model;
  const at::Tensor norm_before = model.parameters[1].tensor.detach().clone();
  OptimizerOptions decay = options(true);
  decay.decay_norms_and_biases = true;
  NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), decay);
  for (Parameter& parameter : model.parameters) (parameter.tensor * 0).sum().backward();
  optimizer.reduce_gradients();
  optimizer.step(0.5);
  EXPECT_TRUE(at::allclose(model.parameters[1].tensor, norm_before * 0.95, 1e-14, 0));
  EXPECT_EQ(optimizer.param_groups()[0].names.size(), 3u) << "one group with everything";
}

TEST(WeightDecay, GroupsCarryTheConfiguredValue) {
  Model model;
  const NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), options(true));
  const auto groups = optimizer.param_groups();
  EXPECT_EQ(groups[0].numbers.weight_decay, 0.1);
  EXPECT_THAT(groups[0].names, testing::UnorderedElementsAre("matrix", "one_row"));
  EXPECT_EQ(groups[1].numbers.weight_decay, 0);
  EXPECT_THAT(groups[1].names, testing::ElementsAre("norm"));
}

TEST(ReduceGradients, AParameterWithoutGradientIsNamed) {
  Model model;
  NeuronZero1Optimizer optimizer(model.parameters, ParallelState(), options(true));
  model.parameters[0].tensor.sum().backward();
  try {
    optimizer.reduce_gradients();
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("one_row"));
  }
}

}  // namespace
}  // namespace trellis::trainer::optimizer_test
