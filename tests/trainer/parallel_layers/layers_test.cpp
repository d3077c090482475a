// Sharded layers against their dense counterparts, and the un-sharded weight against itself under
// other layouts.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer::layers_test {
namespace {

using namespace testing_support;

constexpr std::int64_t kSequence = 8, kBatch = 2, kIn = 24, kOut = 16, kVocab = 40;

/// The weight as a single rank would make it.
at::Tensor full_weight(const WeightSpec& spec) {
  Rank one{ParallelState()};
  return make_parameter(one.context, spec).tensor;
}

class ShardedLayers : public testing::TestWithParam<Setup> {};

TEST_P(ShardedLayers, ColumnParallelLinearEqualsTheDenseLayers) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1);
  const at::Tensor grad_a = random({kSequence, kBatch, kOut}, 2),
                   grad_b = random({kSequence, kBatch, kOut}, 3);
  at::Tensor x = input.clone().requires_grad_();
  const at::Tensor a = full_weight({"p.a.weight", {kOut, kIn}, 0, 1, 0.5}),
                   b = full_weight({"p.b.weight", {kOut, kIn}, 0, 1, 0.5});
  const at::Tensor ya = at::linear(x, a), yb = at::linear(x, b);
  torch::autograd::backward({ya, yb}, {grad_a, grad_b});
  run(GetParam(), [&](Rank& rank) {
    const ColumnParallelLinear layer(rank.context, "p", kIn, {{"a", kOut}, {"b", kOut}},
                                     {.init = 0.5, .bias = false, .gather_output = false});
    at::Tensor local = rank.region(input).clone().requires_grad_();
    const auto outputs = layer.forward(local);
    torch::autograd::backward(
        outputs, {rank.own(grad_a, -1).contiguous(), rank.own(grad_b, -1).contiguous()});
    EXPECT_TRUE(at::allclose(outputs[0], rank.own(ya, -1), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(outputs[1], rank.own(yb, -1), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(local.grad(), rank.region(x.grad()), 1e-12, 1e-12));
    EXPECT_TRUE(
        at::allclose(rank.parameters[0].tensor.grad(), rank.own(a.grad(), 0), 1e-12, 1e-12));
    EXPECT_TRUE(
        at::allclose(rank.parameters[1].tensor.grad(), rank.own(b.grad(), 0), 1e-12, 1e-12));
  });
}

TEST_P(ShardedLayers, RowParallelLinearEqualsTheDenseLayer) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1),
                   grad = random({kSequence, kBatch, kOut}, 2);
  at::Tensor x = input.clone().requires_grad_();
  const at::Tensor weight = full_weight({"p.weight", {kOut, kIn}, 1, 1, 0.5});
  const at::Tensor y = at::linear(x, weight);
  y.backward(grad);
  run(GetParam(), [&](Rank& rank) {
    const RowParallelLinear layer(rank.context, "p", kIn, kOut,
                                  {.init = 0.5, .bias = false, .input_is_parallel = true});
    at::Tensor local = rank.own(input, -1).clone().requires_grad_();
    const at::Tensor output = layer.forward(local);
    output.backward(rank.region(grad).contiguous());
    EXPECT_TRUE(at::allclose(output, rank.region(y), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(local.grad(), rank.own(x.grad(), -1), 1e-12, 1e-12));
    EXPECT_TRUE(
        at::allclose(rank.parameters[0].tensor.grad(), rank.own(weight.grad(), 1), 1e-12, 1e-12));
  });
}

TEST_P(ShardedLayers, ParallelEmbeddingEqualsTheDenseLookUp) {
  const at::Tensor ids =
      at::randint(0, kVocab, {kBatch, kSequence}, at::detail::createCPUGenerator(1), at::kLong);
  const at::Tensor grad = random({kSequence, kBatch, kOut}, 2);
  const at::Tensor weight = full_weight({"p.weight", {kVocab, kOut}, 0, 1, 0.5});
  const at::Tensor y = at::embedding(weight, ids).transpose(0, 1);
  y.backward(grad);
  run(GetParam(), [&](Rank& rank) {
    const ParallelEmbedding layer(rank.context, "p", kVocab, kOut, 0.5);
    const at::Tensor output = layer.forward(ids);
    output.backward(rank.region(grad).contiguous());
    EXPECT_TRUE(at::allclose(output, rank.region(y), 1e-13, 1e-13));
    EXPECT_TRUE(
        at::allclose(rank.parameters[0].tensor.grad(), rank.own(weight.grad(), 0), 1e-12, 1e-12));
  });
}

/// A layer's un-sharded weight and bias on one rank, the bias with values.
struct Affine {
  Affine(const std::string& path, std::int64_t out, std::int64_t in, int dim)
      : weight(full_weight({path + ".weight", {out, in}, dim, 1, 0.5})),
        bias(random({out}, 9).requires_grad_()) {}
  at::Tensor weight, bias;
};

/// Gives the layer's bias the values of the dense one.
void set_bias(Rank& rank, const std::string& name, const at::Tensor& full) {
  const at::NoGradGuard no_grad;
  Parameter& parameter = rank.parameter(name);
  parameter.tensor.copy_(rank.own(full, parameter));
}

/// Sum over TP when each rank has a part of a replicated parameter's gradient.
at::Tensor whole_gradient(const Rank& rank, const Parameter& parameter) {
  at::Tensor grad = parameter.tensor.grad().clone();
  return parameter.sequence_parallel_enabled ? all_reduce(grad, rank.context.tp()) : grad;
}

TEST_P(ShardedLayers, ColumnParallelLinearWithBiasInEveryCombination) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1),
                   grad = random({kSequence, kBatch, kOut}, 2);
  for (const bool gather : {false, true}) {
    if (gather && GetParam().sequence_parallel) continue;
    for (const bool skip : {false, true}) {
      Affine dense("p", kOut, kIn, 0);
      at::Tensor x = input.clone().requires_grad_();
      const at::Tensor y = at::linear(x, dense.weight, dense.bias);
      y.backward(grad);
      run(GetParam(), [&](Rank& rank) {
        const ColumnParallelLinear layer(
            rank.context, "p", kIn, {{"", kOut}},
            {.init = 0.5, .gather_output = gather, .skip_bias_add = skip});
        set_bias(rank, "p.bias", dense.bias);
        at::Tensor local = rank.region(input).clone().requires_grad_();
        at::Tensor output = layer.forward(local)[0];
        EXPECT_EQ(layer.bias().defined(), skip);
        if (skip) output = output + layer.bias();
        const auto seen = [&](const at::Tensor& full) {
          return gather ? full : rank.own(full, -1).contiguous();
        };
        output.backward(seen(grad));
        EXPECT_TRUE(close(output, seen(y)));
        EXPECT_TRUE(close(local.grad(), rank.region(x.grad())));
        EXPECT_TRUE(close(rank.parameters[0].tensor.grad(), rank.own(dense.weight.grad(), 0)));
        EXPECT_TRUE(close(rank.parameters[1].tensor.grad(), rank.own(dense.bias.grad(), 0)));
      });
    }
  }
}

TEST_P(ShardedLayers, RowParallelLinearWithBiasInEveryCombination) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1),
                   grad = random({kSequence, kBatch, kOut}, 2);
  for (const bool parallel_input : {true, false}) {
    if (!parallel_input && GetParam().sequence_parallel) continue;
    for (const bool skip : {false, true}) {
      Affine dense("p", kOut, kIn, 1);
      at::Tensor x = input.clone().requires_grad_();
      const at::Tensor y = at::linear(x, dense.weight, dense.bias);
      y.backward(grad);
      run(GetParam(), [&](Rank& rank) {
        const RowParallelLinear layer(
            rank.context, "p", kIn, kOut,
            {.init = 0.5, .input_is_parallel = parallel_input, .skip_bias_add = skip});
        set_bias(rank, "p.bias", dense.bias);
        const auto seen = [&](const at::Tensor& full) {
          return parallel_input ? rank.own(full, -1).contiguous() : full;
        };
        at::Tensor local = seen(input).clone().requires_grad_();
        at::Tensor output = layer.forward(local);
        if (skip) output = output + layer.bias();
        output.backward(rank.region(grad));
        EXPECT_TRUE(close(output, rank.region(y)));
        EXPECT_TRUE(close(local.grad(), seen(x.grad())));
        EXPECT_TRUE(close(rank.parameters[0].tensor.grad(), rank.own(dense.weight.grad(), 1)));
        EXPECT_TRUE(close(whole_gradient(rank, rank.parameters[1]), dense.bias.grad()));
        EXPECT_EQ(rank.parameters[1].sequence_parallel_enabled, rank.context.sequence_parallel);
        EXPECT_FALSE(rank.parameters[1].weight_decay);
      });
    }
  }
}

TEST_P(ShardedLayers, RowParallelLinearWithoutReductionLeavesThePartsOfTheSum) {
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1);
  const at::Tensor y = at::linear(input, full_weight({"p.weight", {kOut, kIn}, 1, 1, 0.5}));
  run(GetParam(), [&](Rank& rank) {
    const RowParallelLinear layer(
        rank.context, "p", kIn, kOut,
        {.init = 0.5, .bias = false, .input_is_parallel = true, .reduce_output = false});
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(close(all_reduce(layer.forward(rank.own(input, -1)), rank.context.tp()), y));
  });
}

TEST_P(ShardedLayers, FusedBlocksKeepTheirPlaces) {
  // gate|up in one weight: each rank's output is its part of gate, then its part of up.
  const at::Tensor input = random({kSequence, kBatch, kIn}, 1),
                   grad = random({kSequence, kBatch, 2 * kOut}, 2);
  const at::Tensor weight = full_weight({"p.weight", {2 * kOut, kIn}, 0, 2, 0.5});
  const at::Tensor y = at::linear(input, weight);
  y.backward(grad);
  run(GetParam(), [&](Rank& rank) {
    const ColumnParallelLinear layer(
        rank.context, "p", kIn, {{"", 2 * kOut}},
        {.init = 0.5, .bias = false, .gather_output = false, .stride = 2});
    const at::Tensor output = layer.forward(rank.region(input))[0];
    output.backward(shard_of(grad, 2, 2, rank.context.tp()).contiguous());
    EXPECT_TRUE(close(output, shard_of(y, 2, 2, rank.context.tp())));
    EXPECT_TRUE(
        close(rank.parameters[0].tensor.grad(), shard_of(weight.grad(), 0, 2, rank.context.tp())));
  });
}

TEST_P(ShardedLayers, ParallelEmbeddingWithEveryOptionEqualsTheDenseLookUp) {
  const at::Tensor ids =
      at::randint(0, kVocab, {kBatch, kSequence}, at::detail::createCPUGenerator(1), at::kLong);
  const at::Tensor grad = random({kSequence, kBatch, kOut}, 2);
  const std::int64_t padding = ids[0][3].item<std::int64_t>();
  for (const bool columns : {false, true}) {
    const at::Tensor weight = full_weight({"p.weight", {kVocab, kOut}, 0, 1, 0.5});
    const at::Tensor y = at::embedding(weight, ids, padding).transpose(0, 1);
    y.backward(grad);
    run(GetParam(), [&](Rank& rank) {
      const ParallelEmbedding layer(
          rank.context, "p", kVocab, kOut,
          {.init = 0.5, .padding_idx = padding, .shard_across_embedding = columns});
      const at::Tensor output = layer.forward(ids);
      output.backward(rank.region(grad));
      EXPECT_TRUE(close(output, rank.region(y)));
      EXPECT_TRUE(
          close(rank.parameters[0].tensor.grad(), rank.own(weight.grad(), columns ? 1 : 0)));
    });
  }
}

TEST_P(ShardedLayers, DefaultsAreNxDsInitialisationForEveryLayout) {
  const at::Tensor weight = full_weight({"p.weight", {kOut, kIn}, 0, 1, {}});
  EXPECT_LE(weight.abs().max().item<double>(), 1 / std::sqrt(static_cast<double>(kIn)));
  EXPECT_GT(weight.abs().max().item<double>(), 0.9 / std::sqrt(static_cast<double>(kIn)))
      << "uniform up to 1/√in";
  run(GetParam(), [&](Rank& rank) {
    const ColumnParallelLinear column(rank.context, "p", kIn, {{"", kOut}},
                                      {.gather_output = false, .keep_master_weight = true});
    const RowParallelLinear row(rank.context, "q", kIn, kOut,
                                {.input_is_parallel = true, .keep_master_weight = true});
    EXPECT_TRUE(column.weight().equal(rank.own(weight, 0)));
    EXPECT_TRUE(column.master_weight().equal(weight));
    EXPECT_TRUE(row.weight().equal(rank.own(row.master_weight(), 1)));
    for (const char* bias : {"p.bias", "q.bias"})
      EXPECT_EQ(rank.parameter(bias).tensor.abs().sum().item<double>(), 0);
  });
}

TEST_P(ShardedLayers, TheJoinedWeightDoesNotDependOnTheLayout) {
  for (const int stride : {1, 2}) {
    const WeightSpec spec{"model.layers.0.mlp.gate_up_proj.weight", {kOut, kIn}, 0, stride, 0.02};
    std::vector<at::Tensor> shards(static_cast<std::size_t>(GetParam().tp));
    run(GetParam(), [&](Rank& rank) {
      shards[static_cast<std::size_t>(rank.context.tp().rank)] =
          make_parameter(rank.context, spec).tensor;
    });
    EXPECT_TRUE(join_shards(shards, 0, stride).equal(full_weight(spec)));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardedLayers,
                         testing::Values(Setup{1, false}, Setup{2, false}, Setup{2, true},
                                         Setup{4, false}, Setup{4, true}, Setup{8, false},
                                         Setup{8, true}),
                         [](const auto& test) { return name_of(test.param); });

TEST(Weights, NamesAndSeedsGiveDifferentStreamsAndTheRightSpread) {
  const at::Tensor a = full_weight({"a", {100, 100}, 0, 1, 0.02}),
                   b = full_weight({"b", {100, 100}, 0, 1, 0.02});
  EXPECT_FALSE(a.equal(b));
  EXPECT_NEAR(a.std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(a.mean().item<double>(), 0, 0.001);
  EXPECT_NEAR((a * b).sum().item<double>() / 1e4 / 4e-4, 0, 0.05) << "streams are independent";
}

TEST(Weights, FusedBlocksAreShardedEachForItself) {
  const at::Tensor full = at::arange(8).view({8, 1});  // gate 0–3, up 4–7
  EXPECT_TRUE(
      shard_of(full, 0, 2, ParallelGroup{{}, 0, 2}).flatten().equal(at::tensor({0, 1, 4, 5})));
  EXPECT_TRUE(
      shard_of(full, 0, 2, ParallelGroup{{}, 1, 2}).flatten().equal(at::tensor({2, 3, 6, 7})));
}

struct Conflict {
  const char* name;
  std::function<void(Rank&)> build;
  std::vector<std::string> said;
};

class Conflicts : public testing::TestWithParam<Conflict> {};

TEST_P(Conflicts, AreNamedWithTheirNumbers) {
  Rank rank(ParallelState(ParallelGroup{{}, 0, 4}, {}, {}), /*sequence_parallel=*/true);
  try {
    GetParam().build(rank);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    for (const std::string& part : GetParam().said)
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Conflicts,
    testing::Values(
        Conflict{"gather_with_sp",
                 [](Rank& rank) { ColumnParallelLinear(rank.context, "a.b", kIn, {{"", kOut}}); },
                 {"a.b", "gather_output", "size 4"}},
        Conflict{"row_sp_whole_input",
                 [](Rank& rank) { RowParallelLinear(rank.context, "a.b", kIn, kOut); },
                 {"a.b", "input_is_parallel", "6 columns", "24"}},
        Conflict{"bias_on_parts",
                 [](Rank& rank) {
                   RowParallelLinear(rank.context, "a.b", kIn, kOut,
                                     {.input_is_parallel = true, .reduce_output = false});
                 },
                 {"a.b", "4 parts", "skip_bias_add"}},
        Conflict{"column_size",
                 [](Rank& rank) {
                   ColumnParallelLinear(rank.context, "a.b", kIn, {{"", 18}},
                                        {.gather_output = false});
                 },
                 {"a.b.weight", "multiple of 4", "got 18"}},
        Conflict{"column_stride",
                 [](Rank& rank) {
                   ColumnParallelLinear(rank.context, "a.b", kIn, {{"", 12}},
                                        {.gather_output = false, .stride = 2});
                 },
                 {"a.b.weight", "multiple of 8", "got 12"}},
        Conflict{"row_size",
                 [](Rank& rank) {
                   RowParallelLinear(rank.context, "a.b", 18, kOut, {.input_is_parallel = true});
                 },
                 {"a.b.weight", "multiple of 4", "got 18"}},
        Conflict{"vocabulary",
                 [](Rank& rank) { ParallelEmbedding(rank.context, "a.b", 42, kOut); },
                 {"a.b.weight", "multiple of 4", "got 42"}},
        Conflict{"embedding_columns",
                 [](Rank& rank) {
                   ParallelEmbedding(rank.context, "a.b", kVocab, 18,
                                     {.shard_across_embedding = true});
                 },
                 {"a.b.weight", "dimension 1", "got 18"}},
        Conflict{"padding_idx",
                 [](Rank& rank) {
                   ParallelEmbedding(rank.context, "a.b", kVocab, kOut, {.padding_idx = kVocab});
                 },
                 {"a.b", "padding_idx", "0 … 39", "got 40"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Weights, AnIndivisibleShapeIsNamed) {
  try {
    run({2, false},
        [](Rank& rank) { make_parameter(rank.context, {"model.norm.odd", {7, 2}, 0, 1, 1.0}); });
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("model.norm.odd"), testing::HasSubstr("got 7")));
  }
}

}  // namespace
}  // namespace trellis::trainer::layers_test
