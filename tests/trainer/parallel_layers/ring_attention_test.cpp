// Ring attention against attention over the whole sequence, written out in fp64: results and
// gradients, in each order, with windows and documents; and what travels.
#include <cmath>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/trainer/parallel_layers/sharded_rank.h"
#include "trainer/modules/core_attention.h"
#include "trainer/parallel_layers/ring_attention.h"

namespace trellis::trainer::ring_attention_test {
namespace {

using testing_support::close;
using testing_support::random;

struct Case {
  const char* name;
  int cp = 2;
  bool balanced = false;
  std::optional<int> window = {};
  bool documents = false;
  std::int64_t kv_heads = 4;
};

constexpr std::int64_t kLength = 16, kBatch = 2, kHeads = 4, kHeadDim = 8;

/// [b, s]: two documents in the first sample, the second of which starts within a rank's part.
at::Tensor documents() {
  at::Tensor numbers = at::ones({kBatch, kLength}, at::kLong);
  numbers[0].narrow(0, 6, kLength - 6).fill_(2);
  numbers[1].narrow(0, 13, 3).fill_(0);
  return numbers;
}

/// By definition: [s, b, n, d] → the same.
at::Tensor whole_attention(const Case& c, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value) {
  const auto heads = [](const at::Tensor& tensor) {
    return tensor.permute({1, 2, 0, 3}).repeat_interleave(kHeads / tensor.size(2), 1);
  };
  const at::Tensor position = at::arange(kLength);
  const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  at::Tensor allowed = distance.ge(0);
  if (c.window) allowed = allowed.logical_and(distance.lt(*c.window));
  if (c.documents) {
    const at::Tensor numbers = documents();
    allowed = numbers.unsqueeze(2).eq(numbers.unsqueeze(1)).logical_and(allowed).unsqueeze(1);
  }
  const at::Tensor scores =
      at::matmul(heads(query), heads(key).transpose(2, 3)) / std::sqrt(double{kHeadDim});
  const at::Tensor probabilities = scores.masked_fill(allowed.logical_not(), -INFINITY).softmax(-1);
  return at::matmul(probabilities, heads(value)).permute({2, 0, 1, 3});
}

class RingAttention : public testing::TestWithParam<Case> {};

TEST_P(RingAttention, EqualsAttentionOverTheWholeSequence) {
  const Case c = GetParam();
  const auto leaf = [](std::int64_t heads, std::uint64_t seed) {
    return random({kLength, kBatch, heads, kHeadDim}, seed).requires_grad_();
  };
  const std::vector<at::Tensor> whole = {leaf(kHeads, 1), leaf(c.kv_heads, 2), leaf(c.kv_heads, 3)};
  const at::Tensor expected = whole_attention(c, whole[0], whole[1], whole[2]);
  const at::Tensor grad = random(expected.sizes(), 4);
  expected.backward(grad);
  runtime::WorldOptions world;
  world.world_size = c.cp;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    testing_support::Rank local(
        ParallelState::initialize_model_parallel(rank, {.context_parallel_size = c.cp}));
    local.context.balanced_context = c.balanced;
    const SequenceShard shard = local.context.sequence(kLength);
    const auto ring = std::make_shared<const Ring>(
        Ring{local.state.get_context_model_parallel_group(), plan_ring(shard, c.window)});
    const RingMasks masks(local.context, kLength, c.window, ring);
    std::vector<at::Tensor> own;
    for (const at::Tensor& tensor : whole)
      own.push_back(shard.take(tensor.detach(), 0).clone().requires_grad_());
    const at::Tensor result = ring_attention(
        own[0], own[1], own[2], masks.of(c.documents ? documents() : at::Tensor()).masks, ring);
    result.backward(shard.take(grad, 0));
    EXPECT_TRUE(close(result, shard.take(expected.detach(), 0))) << "rank " << shard.rank;
    for (std::size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(close(own[i].grad(), shard.take(whole[i].grad(), 0), 1e-11))
          << "rank " << shard.rank << ", gradient " << i;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Rings, RingAttention,
    testing::Values(
        Case{.name = "two"}, Case{.name = "four", .cp = 4},
        Case{.name = "balanced_two", .balanced = true},
        Case{.name = "balanced_four", .cp = 4, .balanced = true},
        Case{.name = "grouped", .cp = 4, .kv_heads = 2},
        Case{.name = "balanced_grouped", .cp = 4, .balanced = true, .kv_heads = 1},
        Case{.name = "window_within_a_block", .cp = 4, .window = 3},
        Case{.name = "window_of_one", .cp = 4, .window = 1},
        Case{.name = "window_over_blocks", .cp = 4, .window = 7, .kv_heads = 2},
        Case{.name = "window_as_long_as_all", .cp = 4, .window = 16},
        Case{.name = "documents", .cp = 4, .documents = true},
        Case{.name = "documents_in_windows", .cp = 2, .window = 5, .documents = true},
        Case{.name = "balanced_documents", .cp = 4, .balanced = true, .documents = true}),
    [](const auto& test) { return std::string(test.param.name); });

/// Pairs (query, key) that all steps of all ranks compute, by position: each allowed pair once.
TEST(RingPlan, ComputesEachPairOnce) {
  for (const bool balanced : {false, true}) {
    for (const int cp : {1, 2, 3, 4}) {
      const std::int64_t length = 24;
      at::Tensor computed = at::zeros({length, length}, at::kLong);
      const at::Tensor positions = at::arange(length);
      for (int rank = 0; rank < cp; ++rank) {
        const SequenceShard shard{length, rank, cp, balanced};
        for (const RingStep& step : plan_ring(shard, {}).steps) {
          const at::Tensor
              query = shard.take(positions, 0).narrow(0, step.queries.first, step.queries.count),
              key =
                  shard.take(positions, 0, step.owner).narrow(0, step.keys.first, step.keys.count);
          at::Tensor pairs = at::ones({query.size(0), key.size(0)}, at::kLong);
          if (step.causal) pairs = pairs.tril();
          computed.index_put_({query.unsqueeze(1), key.unsqueeze(0)}, pairs, /*accumulate=*/true);
        }
      }
      EXPECT_TRUE(at::equal(computed, at::ones({length, length}, at::kLong).tril()))
          << "CP " << cp << (balanced ? " balanced" : "");
    }
  }
}

TEST(RingPlan, BalancedRanksComputeEqually) {
  const auto pairs = [](int rank, bool balanced) {
    std::int64_t count = 0;
    for (const RingStep& step : plan_ring({64, rank, 4, balanced}, {}).steps) {
      const std::int64_t all = step.queries.count * step.keys.count;
      count += step.causal ? (all + step.queries.count) / 2 : all;
    }
    return count;
  };
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(pairs(rank, true), pairs(0, true));
  EXPECT_GT(pairs(3, false), 6 * pairs(0, false));
}

TEST(RingPlan, BlocksTravelAsFarAsSomeoneReadsThem) {
  EXPECT_EQ(to_string(plan_ring({16, 2, 4, false}, {})),
            "block 2: queries 0–3 read keys 0–3, causal; sends; receives\n"
            "block 1: queries 0–3 read keys 0–3; sends; receives\n"
            "block 0: queries 0–3 read keys 0–3; sends\n");
  // A window of four reaches back three positions: no further than the rank before.
  EXPECT_EQ(to_string(plan_ring({16, 3, 4, false}, 4)),
            "block 3: queries 0–3 read keys 0–3, causal; receives\n"
            "block 2: queries 0–3 read keys 0–3, in a window\n");
  EXPECT_EQ(plan_ring({16, 3, 4, false}, 1).steps.size(), 1U);
  EXPECT_EQ(to_string(plan_ring({16, 1, 2, true}, {})),
            "block 1: queries 0–7 read keys 0–7, causal; sends; receives\n"
            "block 0: queries 0–7 read keys 0–3\n");
}

}  // namespace
}  // namespace trellis::trainer::ring_attention_test
