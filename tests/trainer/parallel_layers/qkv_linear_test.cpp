// GQAQKVColumnParallelLinear against dense projections: replication in both orders, fused and not,
// outputs, gradients, equal replicas.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/parallel_layers/layers.h"
#include "trainer/parallel_layers/qkv_linear.h"

namespace trellis::trainer::qkv_linear_test {
namespace {

using namespace testing_support;

constexpr std::int64_t kSequence = 8, kBatch = 2, kHidden = 12, kHeadDim = 3;
const AttentionShape kShape{kHidden, 16, 4, kHeadDim};

struct Case {
  Setup setup;
  bool fused, bias;
};

/// Attention-like use of the projections: every query head meets its own key/value head.
at::Tensor meet(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const std::int64_t copies = query.size(2) / key.size(2);
  return query * key.repeat_interleave(copies, 2).tanh() +
         value.repeat_interleave(copies, 2).sin() * query.cos();
}

/// The layer on one rank: [s, b, n, d] per query head, and the gradients.
struct Dense {
  explicit Dense(bool bias) : rank(ParallelState()) {
    rank.context.sequence_parallel = false;
    layer.emplace(
        rank.context, "qkv", kShape,
        QkvLinearOptions{.init = 0.5, .bias = bias, .gather_output = false, .fuse_qkv = false});
    at::NoGradGuard no_grad;
    for (Parameter& parameter : rank.parameters) {
      if (parameter.tensor.dim() == 1) parameter.tensor.copy_(random(parameter.tensor.sizes(), 7));
    }
    input = random({kSequence, kBatch, kHidden}, 1).requires_grad_();
    grad = random({kSequence, kBatch, kShape.num_heads, kHeadDim}, 2);
    at::AutoGradMode recording(true);
    const auto [q, k, v] = layer->forward(input);
    output = meet(q, k, v);
    output.backward(grad);
  }
  /// Un-sharded gradient or value of "weight" / "bias", fused or of one projection.
  at::Tensor full(const std::string& kind, const std::string& which, bool gradient) {
    const auto one = [&](const std::string& projection) {
      const at::Tensor& tensor = rank.parameter("qkv." + kind + "_" + projection).tensor;
      return gradient ? tensor.grad() : tensor.detach();
    };
    return which == "qkv" ? at::cat({one("q"), one("k"), one("v")}) : one(which);
  }
  Rank rank;
  std::optional<GQAQKVColumnParallelLinear> layer;
  at::Tensor input, grad, output;
};

/// Rows of an activation's head dimension that a rank holds.
at::Tensor own_heads(const at::Tensor& full, const Partition& columns, const ParallelGroup& tp) {
  return shard_of(full.flatten(2), {2, columns.blocks}, tp.rank, tp.size)
      .unflatten(-1, {-1, kHeadDim})
      .contiguous();
}

class QkvLinear : public testing::TestWithParam<Case> {};

TEST_P(QkvLinear, EqualsTheDenseProjectionsWithAllGradients) {
  const Case& c = GetParam();
  Dense dense(c.bias);
  const auto ranks = static_cast<std::size_t>(c.setup.tp);
  std::map<std::string, std::vector<at::Tensor>> weights, grads;
  std::map<std::string, Partition> partitions;
  std::mutex mutex;
  run(c.setup, [&](Rank& rank) {
    const QkvLinearOptions options{.init = 0.5,
                                   .bias = c.bias,
                                   .gather_output = false,
                                   .kv_size_multiplier = c.setup.kv_size_multiplier,
                                   .fuse_qkv = c.fused};
    const GQAQKVColumnParallelLinear layer(rank.context, "qkv", kShape, options);
    for (Parameter& parameter : rank.parameters) {
      if (parameter.tensor.dim() != 1) continue;
      const at::NoGradGuard no_grad;
      parameter.tensor.copy_(
          rank.own(dense.full("bias", parameter.name.substr(9), false), parameter));
    }
    at::Tensor local = rank.region(dense.input.detach()).clone().requires_grad_();
    const auto [q, k, v] = layer.forward(local);
    const at::Tensor output = meet(q, k, v);
    output.backward(own_heads(dense.grad, layer.query_columns(), rank.context.tp()));
    EXPECT_TRUE(close(output, own_heads(dense.output, layer.query_columns(), rank.context.tp())));
    EXPECT_TRUE(close(local.grad(), rank.region(dense.input.grad())));
    const std::lock_guard lock(mutex);
    for (Parameter& parameter : rank.parameters) {
      partitions[parameter.name] = parameter.partition;
      weights[parameter.name].resize(ranks);
      grads[parameter.name].resize(ranks);
      weights[parameter.name][static_cast<std::size_t>(rank.context.tp().rank)] =
          parameter.tensor.detach();
      grads[parameter.name][static_cast<std::size_t>(rank.context.tp().rank)] =
          parameter.tensor.grad();
    }
  });
  EXPECT_EQ(weights.size(), (c.fused ? 1u : 3u) * (c.bias ? 2u : 1u));
  for (const auto& [name, shards] : weights) {
    const std::string kind = name.substr(4, name.find('_') - 4),
                      which = name.substr(name.find('_') + 1);
    EXPECT_TRUE(join_shards(shards, partitions[name]).equal(dense.full(kind, which, false)))
        << name;
    const at::Tensor grad = join_shards(grads[name], partitions[name]);
    EXPECT_TRUE(close(grad, dense.full(kind, which, true))) << name;
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_TRUE(
          grads[name][r].equal(shard_of(grad, partitions[name], static_cast<int>(r), c.setup.tp)))
          << name << ": replicas differ";
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool fused : {true, false}) {
    for (const Setup& setup : {Setup{1}, Setup{2}, Setup{4, true}, Setup{8, false, 2},
                               Setup{8, true, 2}, Setup{4, true, 2}, Setup{4, false, 4},
                               Setup{8, true, 4}, Setup{8, true, 2, ReplicaOrder::kInterleaved},
                               Setup{8, false, 2, ReplicaOrder::kInterleaved},
                               Setup{4, false, 2, ReplicaOrder::kInterleaved},
                               Setup{8, false, 4, ReplicaOrder::kInterleaved}}) {
      all.push_back({setup, fused, setup.tp != 2});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, QkvLinear, testing::ValuesIn(cases()), [](const auto& test) {
  return name_of(test.param.setup) + (test.param.fused ? "_fused" : "") +
         (test.param.bias ? "_bias" : "");
});

/// Every rank sees all heads, each key/value head once.
TEST_P(QkvLinear, GatheredOutputsAreTheDenseOnes) {
  const Case& c = GetParam();
  if (c.setup.sequence_parallel || c.bias) return;
  Dense dense(false);
  const auto [dense_q, dense_k, dense_v] = dense.layer->forward(dense.input.detach());
  run(c.setup, [&, &dq = dense_q, &dk = dense_k, &dv = dense_v](Rank& rank) {
    const QkvLinearOptions options{.init = 0.5,
                                   .bias = false,
                                   .kv_size_multiplier = c.setup.kv_size_multiplier,
                                   .fuse_qkv = c.fused};
    const GQAQKVColumnParallelLinear layer(rank.context, "qkv", kShape, options);
    at::Tensor local = dense.input.detach().clone().requires_grad_();
    const auto [q, k, v] = layer.forward(local);
    EXPECT_TRUE(close(q, dq));
    EXPECT_TRUE(close(k, dk));
    EXPECT_TRUE(close(v, dv));
    meet(q, k, v).backward(dense.grad);
    EXPECT_TRUE(close(local.grad(), dense.input.grad()));
  });
}

// ── pad_model ──

/// Attention without positions over all tokens: a padded query head does attend, to whatever its
/// key/value head holds.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const std::int64_t copies = query.size(2) / key.size(2);
  const auto heads = [&](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const at::Tensor k = heads(key.repeat_interleave(copies, 2)),
                   v = heads(value.repeat_interleave(copies, 2));
  return heads(query).matmul(k.transpose(2, 3)).softmax(-1).matmul(v).permute({2, 0, 1, 3});
}

struct Padding {
  Setup setup;
  std::int64_t heads, kv_heads, padded_heads_per_rank;
  bool fused;
};

/// One attention block: projections, attention, output projection.
at::Tensor block(const Rank& rank, const GQAQKVColumnParallelLinear& qkv,
                 const RowParallelLinear& output, const at::Tensor& input,
                 std::int64_t* heads = nullptr) {
  const auto [q, k, v] = qkv.forward(rank.region(input));
  if (heads != nullptr) *heads = q.size(2);
  return output.forward(qkv.mask_padded_heads(attend(q, k, v)).flatten(2));
}

class PadModel : public testing::TestWithParam<Padding> {};

TEST_P(PadModel, EqualsTheUnpaddedModelWithAllGradients) {
  const Padding& c = GetParam();
  const AttentionShape shape{kHidden, c.heads, c.kv_heads, kHeadDim};
  const at::Tensor input = random({kSequence, kBatch, kHidden}, 1),
                   grad = random({kSequence, kBatch, kHidden}, 2);
  const auto row_options = [](const GQAQKVColumnParallelLinear& qkv) {
    return RowParallelLinearOptions{
        .init = 0.5, .bias = false, .input_is_parallel = true, .partition = qkv.query_columns()};
  };
  Rank one{ParallelState()};
  const GQAQKVColumnParallelLinear dense(
      one.context, "qkv", shape, {.init = 0.5, .gather_output = false, .fuse_qkv = c.fused});
  const RowParallelLinear dense_output(one.context, "o", c.heads * kHeadDim, kHidden,
                                       row_options(dense));
  const at::Tensor expected = block(one, dense, dense_output, input);
  expected.backward(grad);
  const auto ranks = static_cast<std::size_t>(c.setup.tp);
  std::map<std::string, std::vector<at::Tensor>> weights, grads;
  std::map<std::string, Partition> partitions;
  std::mutex mutex;
  run(c.setup, [&](Rank& rank) {
    const GQAQKVColumnParallelLinear qkv(rank.context, "qkv", shape,
                                         {.init = 0.5,
                                          .gather_output = false,
                                          .kv_size_multiplier = c.setup.kv_size_multiplier,
                                          .fuse_qkv = c.fused,
                                          .pad_heads = true});
    const RowParallelLinear output(rank.context, "o", c.heads * kHeadDim, kHidden,
                                   row_options(qkv));
    std::int64_t heads = 0;
    const at::Tensor got = block(rank, qkv, output, input, &heads);
    got.backward(rank.region(grad));
    EXPECT_EQ(heads, c.padded_heads_per_rank);
    EXPECT_TRUE(close(got, rank.region(expected)));
    const std::lock_guard lock(mutex);
    for (Parameter& parameter : rank.parameters) {
      partitions[parameter.name] = parameter.partition;
      weights[parameter.name].resize(ranks);
      grads[parameter.name].resize(ranks);
      weights[parameter.name][static_cast<std::size_t>(rank.context.tp().rank)] =
          parameter.tensor.detach();
      grads[parameter.name][static_cast<std::size_t>(rank.context.tp().rank)] =
          parameter.tensor.grad();
    }
  });
  for (const Parameter& parameter : one.parameters) {
    const std::string& name = parameter.name;
    const at::Tensor whole = join_shards(grads[name], partitions[name]);
    EXPECT_TRUE(join_shards(weights[name], partitions[name]).equal(parameter.tensor.detach()))
        << name;
    EXPECT_TRUE(close(whole, parameter.tensor.grad())) << name;
    for (std::size_t r = 0; r < ranks; ++r) {
      const at::Tensor own = shard_of(whole, partitions[name], static_cast<int>(r), c.setup.tp);
      EXPECT_TRUE(grads[name][r].equal(own))
          << name << ": padded rows must get no gradient, replicas the same";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PadModel,
    testing::Values(Padding{{8}, 12, 12, 2, false},
                    Padding{{4, true}, 6, 2, 3, true},  // key/value heads padded, with their groups
                    Padding{{8, false, 4}, 12, 2, 2, true},
                    Padding{{8, true, 4, ReplicaOrder::kInterleaved}, 12, 2, 2, false},
                    Padding{{8, false, 2}, 20, 4, 3, true},
                    Padding{{4, false, 2, ReplicaOrder::kInterleaved}, 12, 4, 4, true},
                    Padding{{8}, 16, 8, 2, true}),
    [](const auto& test) {
      return name_of(test.param.setup) + "_" + std::to_string(test.param.heads) + "_heads_" +
             std::to_string(test.param.kv_heads) + (test.param.fused ? "_fused" : "");
    });

/// The un-sharded query heads of all ranks, in rank order; −1 for padding.
std::vector<std::int64_t> heads_of(const AttentionShape& shape, int tp, int multiplier,
                                   ReplicaOrder order) {
  const QkvPartition partition =
      partition_qkv(shape, tp, multiplier, order, "attention", /*pad_heads=*/true);
  std::vector<std::int64_t> heads;
  for (const RowRange& range : partition.query.blocks[0].rows) {
    for (std::int64_t i = 0; i < range.count; ++i)
      heads.push_back(range.is_padding() ? -1 : range.first + i);
  }
  return heads;
}

TEST(PadModelMasks, FortyEightHeadsOnThirtyTwoRanks) {
  // Eight key/value heads, four copies each: groups of six query heads, filled up to eight. A copy
  // holds two of them.
  const AttentionShape shape{48, 48, 8, 1};
  const auto adjacent = heads_of(shape, 32, 4, ReplicaOrder::kAdjacent),
             interleaved = heads_of(shape, 32, 4, ReplicaOrder::kInterleaved);
  ASSERT_EQ(adjacent.size(), 64u);
  ASSERT_EQ(interleaved.size(), 64u);
  for (std::int64_t i = 0; i < 64; ++i) {
    const std::int64_t group = i / 8, within = i % 8;
    EXPECT_EQ(adjacent[static_cast<std::size_t>(i)], within < 6 ? group * 6 + within : -1) << i;
    const std::int64_t copy = i / 16, set = i / 2 % 8, place = copy * 2 + i % 2;
    EXPECT_EQ(interleaved[static_cast<std::size_t>(i)], place < 6 ? set * 6 + place : -1) << i;
  }
}

TEST(PadModelMasks, TwoHundredHeadsOnSixtyFourRanks) {
  const AttentionShape shape{200, 200, 8,
                             1};  // groups of 25, filled up to 32: four heads on each rank
  for (const ReplicaOrder order : {ReplicaOrder::kAdjacent, ReplicaOrder::kInterleaved}) {
    std::vector<std::int64_t> heads = heads_of(shape, 64, 8, order);
    EXPECT_EQ(heads.size(), 256u);
    std::sort(heads.begin(), heads.end());
    for (std::int64_t i = 0; i < 256; ++i)
      EXPECT_EQ(heads[static_cast<std::size_t>(i)], i < 56 ? -1 : i - 56);
  }
}

TEST(ReplicaOrders, FollowTheHardwareAndRefuseWhatTheyDoNotKnow) {
  EXPECT_EQ(replica_order_of("trn1"), ReplicaOrder::kInterleaved);
  EXPECT_EQ(replica_order_of("trn2"), ReplicaOrder::kAdjacent);
  EXPECT_THROW(static_cast<void>(replica_order_of("v100")), ConfigError);
}

struct Misfit {
  const char* name;
  AttentionShape shape;
  int tp, multiplier;
  std::vector<std::string> said;
};

class QkvMisfits : public testing::TestWithParam<Misfit> {};

TEST_P(QkvMisfits, AreNamedWithTheirNumbers) {
  const Misfit& c = GetParam();
  try {
    static_cast<void>(
        partition_qkv(c.shape, c.tp, c.multiplier, ReplicaOrder::kAdjacent, "layers.3.qkv"));
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("layers.3.qkv"));
    for (const std::string& part : c.said) EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, QkvMisfits,
    testing::Values(
        Misfit{"multiplier_and_tp", {64, 16, 4}, 8, 3, {"a divisor of 8", "got 3"}},
        Misfit{"no_multiplier", {64, 16, 4}, 8, 0, {"kv_size_multiplier", "got 0"}},
        Misfit{"tp_beyond_the_kv_heads",
               {64, 16, 4},
               8,
               1,
               {"num_kv_heads · kv_size_multiplier = 4 · 1", "a divisor of 4", "got 8"}},
        Misfit{
            "tp_and_heads", {64, 12, 4}, 8, 2, {"the attention heads", "a divisor of 12", "got 8"}},
        Misfit{"kv_heads_and_heads", {64, 16, 5}, 2, 1, {"num_kv_heads must divide", "got 5"}},
        Misfit{"copies_and_groups",
               {64, 12, 4},
               4,
               2,
               {"serve as many query heads", "= 8", "got 12"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(QkvConflicts, AreNamed) {
  Rank sp(ParallelState(ParallelGroup{{}, 0, 4}, {}, {}), /*sequence_parallel=*/true);
  EXPECT_THROW(GQAQKVColumnParallelLinear(sp.context, "qkv", kShape), ConfigError)
      << "gather_output with sequence parallelism";
  EXPECT_THROW(GQAQKVColumnParallelLinear(sp.context, "qkv", kShape,
                                          {.gather_output = false, .kv_size_multiplier = 2}),
               ConfigError)
      << "the parallel state has no groups for this multiplier";
}

}  // namespace
}  // namespace trellis::trainer::qkv_linear_test
