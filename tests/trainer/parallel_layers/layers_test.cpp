// Sharded layers against their dense counterparts, and the un-sharded weight against itself under other layouts.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "runtime/world.h"
#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer {
namespace {

constexpr std::int64_t kSequence = 8, kBatch = 2, kIn = 12, kOut = 16, kVocab = 20;

struct Setup {
  int tp;
  bool sequence_parallel;
};

/// One rank's layer context with its own parameter list.
struct Rank {
  Rank(runtime::RankContext& rank, const Setup& setup) : state(ParallelState::initialize_model_parallel(rank, setup.tp, 1)) {
    context.parallel = &state;
    context.parameters = &parameters;
    context.backward = std::make_shared<BackwardLayer>();
    context.dtype = context.reduce_dtype = at::kDouble;
    context.sequence_parallel = setup.sequence_parallel;
    context.seed = 4;
  }
  [[nodiscard]] at::Tensor own(const at::Tensor& full, int dim) const { return shard_of(full, dim, 1, context.tp()); }
  /// What a layer outside the tensor-parallel region sees: its part of the sequence, or everything.
  [[nodiscard]] at::Tensor region(const at::Tensor& full) const { return context.sequence_parallel ? own(full, 0) : full; }
  ParallelState state;
  ParameterList parameters;
  ModuleContext context;
};

at::Tensor random(std::initializer_list<std::int64_t> sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

void run(const Setup& setup, const std::function<void(Rank&)>& body) {
  runtime::WorldOptions world;
  world.world_size = setup.tp;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    Rank local(rank, setup);
    body(local);
  });
}

/// The weight as a single rank would make it.
at::Tensor full_weight(const WeightSpec& spec) {
  ParallelState one;
  ParameterList parameters;
  ModuleContext context;
  context.parallel = &one;
  context.parameters = &parameters;
  context.dtype = at::kDouble;
  context.seed = 4;
  return make_parameter(context, spec).tensor;
}

class ShardedLayers : public testing::TestWithParam<Setup> {};

TEST_P(ShardedLayers, ColumnParallelLinearEqualsTheDenseLayers) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1);
  const at::Tensor grad_a = random({kSequence, kBatch, kOut}, 2), grad_b = random({kSequence, kBatch, kOut}, 3);
  at::Tensor x = input.clone().requires_grad_();
  const at::Tensor a = full_weight({"p.a.weight", {kOut, kIn}, 0, 1, 0.5}), b = full_weight({"p.b.weight", {kOut, kIn}, 0, 1, 0.5});
  const at::Tensor ya = at::linear(x, a), yb = at::linear(x, b);
  torch::autograd::backward({ya, yb}, {grad_a, grad_b});
  run(GetParam(), [&](Rank& rank) {
    const ColumnParallelLinear layer(rank.context, "p", kIn, {{"a", kOut}, {"b", kOut}}, 0.5);
    at::Tensor local = rank.region(input).clone().requires_grad_();
    const auto outputs = layer.forward(local);
    torch::autograd::backward(outputs, {rank.own(grad_a, -1).contiguous(), rank.own(grad_b, -1).contiguous()});
    EXPECT_TRUE(at::allclose(outputs[0], rank.own(ya, -1), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(outputs[1], rank.own(yb, -1), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(local.grad(), rank.region(x.grad()), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(rank.parameters[0].tensor.grad(), rank.own(a.grad(), 0), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(rank.parameters[1].tensor.grad(), rank.own(b.grad(), 0), 1e-12, 1e-12));
  });
}

TEST_P(ShardedLayers, RowParallelLinearEqualsTheDenseLayer) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1), grad = random({kSequence, kBatch, kOut}, 2);
  at::Tensor x = input.clone().requires_grad_();
  const at::Tensor weight = full_weight({"p.weight", {kOut, kIn}, 1, 1, 0.5});
  const at::Tensor y = at::linear(x, weight);
  y.backward(grad);
  run(GetParam(), [&](Rank& rank) {
    const RowParallelLinear layer(rank.context, "p", kIn, kOut, 0.5);
    at::Tensor local = rank.own(input, -1).clone().requires_grad_();
    const at::Tensor output = layer.forward(local);
    output.backward(rank.region(grad).contiguous());
    EXPECT_TRUE(at::allclose(output, rank.region(y), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(local.grad(), rank.own(x.grad(), -1), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(rank.parameters[0].tensor.grad(), rank.own(weight.grad(), 1), 1e-12, 1e-12));
  });
}

TEST_P(ShardedLayers, ParallelEmbeddingEqualsTheDenseLookUp) {
  const at::Tensor ids = at::randint(0, kVocab, {kBatch, kSequence}, at::detail::createCPUGenerator(1), at::kLong);
  const at::Tensor grad = random({kSequence, kBatch, kOut}, 2);
  const at::Tensor weight = full_weight({"p.weight", {kVocab, kOut}, 0, 1, 0.5});
  const at::Tensor y = at::embedding(weight, ids).transpose(0, 1);
  y.backward(grad);
  run(GetParam(), [&](Rank& rank) {
    const ParallelEmbedding layer(rank.context, "p", kVocab, kOut, 0.5);
    const at::Tensor output = layer.forward(ids);
    output.backward(rank.region(grad).contiguous());
    EXPECT_TRUE(at::allclose(output, rank.region(y), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(rank.parameters[0].tensor.grad(), rank.own(weight.grad(), 0), 1e-12, 1e-12));
  });
}

TEST_P(ShardedLayers, TheJoinedWeightDoesNotDependOnTheLayout) {
  for (const int stride : {1, 2}) {
    const WeightSpec spec{"model.layers.0.mlp.gate_up_proj.weight", {kOut, kIn}, 0, stride, 0.02};
    std::vector<at::Tensor> shards(static_cast<std::size_t>(GetParam().tp));
    run(GetParam(), [&](Rank& rank) { shards[static_cast<std::size_t>(rank.context.tp().rank)] = make_parameter(rank.context, spec).tensor; });
    EXPECT_TRUE(join_shards(shards, 0, stride).equal(full_weight(spec)));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedLayers, testing::Values(Setup{1, false}, Setup{2, false}, Setup{2, true}, Setup{4, true}),
                         [](const auto& test) { return "TP" + std::to_string(test.param.tp) + (test.param.sequence_parallel ? "_SP" : ""); });

TEST(Weights, NamesAndSeedsGiveDifferentStreamsAndTheRightSpread) {
  const at::Tensor a = full_weight({"a", {100, 100}, 0, 1, 0.02}), b = full_weight({"b", {100, 100}, 0, 1, 0.02});
  EXPECT_FALSE(a.equal(b));
  EXPECT_NEAR(a.std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(a.mean().item<double>(), 0, 0.001);
  EXPECT_NEAR((a * b).sum().item<double>() / 1e4 / 4e-4, 0, 0.05) << "streams are independent";
}

TEST(Weights, FusedBlocksAreShardedEachForItself) {
  const at::Tensor full = at::arange(8).view({8, 1});  // gate 0–3, up 4–7
  EXPECT_TRUE(shard_of(full, 0, 2, ParallelGroup{{}, 0, 2}).flatten().equal(at::tensor({0, 1, 4, 5})));
  EXPECT_TRUE(shard_of(full, 0, 2, ParallelGroup{{}, 1, 2}).flatten().equal(at::tensor({2, 3, 6, 7})));
}

TEST(Weights, AnIndivisibleShapeIsNamed) {
  try {
    run({2, false}, [](Rank& rank) { make_parameter(rank.context, {"model.norm.odd", {7, 2}, 0, 1, 1.0}); });
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("model.norm.odd"), testing::HasSubstr("got 7")));
  }
}

}  // namespace
}  // namespace trellis::trainer
