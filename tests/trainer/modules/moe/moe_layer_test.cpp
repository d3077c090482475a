#include "trainer/modules/moe/moe_layer.h"

#include <gtest/gtest.h>

#include "tests/trainer/modules/moe/one_rank.h"
#include "trainer/models/llama/modeling_llama.h"

namespace trellis::trainer {
namespace {

using testing_support::OneRank;
using testing_support::random;

constexpr std::int64_t kLength = 9, kBatch = 3, kTokens = kLength * kBatch;

struct Result {
  at::Tensor output, input_grad;
  std::vector<at::Tensor> grads;
  std::shared_ptr<RouterRecord> record;
};

Result run(OneRank& rank, std::uint64_t seed = 1) {
  const MoeLayer layer(rank.context, "mlp", rank.model, LlamaForCausalLM::names(), 0);
  Result result;
  result.record = std::make_shared<RouterRecord>();
  const at::Tensor input = random({kLength, kBatch, 12}, seed).requires_grad_();
  result.output = layer.forward(input, result.record);
  (result.output * random(result.output.sizes(), 9)).sum().backward();
  result.input_grad = input.grad();
  for (const Parameter& parameter : rank.parameters)
    result.grads.push_back(parameter.tensor.grad());
  return result;
}

/// Every token through every expert, weighted; 0 for those that are not kept.
at::Tensor by_hand(const OneRank& rank, const at::Tensor& input, const at::Tensor& weights) {
  const at::Tensor tokens = input.reshape({kTokens, 12});
  const std::int64_t experts = weights.size(1), ffn = rank.model.ffn_hidden_size;
  const at::Tensor in = rank.weight("gate_up_proj.weight").view({experts, 2 * ffn, 12}),
                   out = rank.weight("down_proj.weight").view({experts, 12, ffn});
  at::Tensor sum = at::zeros_like(tokens);
  for (std::int64_t e = 0; e < experts; ++e) {
    const at::Tensor both = at::linear(tokens, in[e]);
    const at::Tensor hidden = at::silu(both.narrow(1, 0, ffn)) * both.narrow(1, ffn, ffn);
    sum = sum + weights.select(1, e).unsqueeze(1) * at::linear(hidden, out[e]);
  }
  return sum.view(input.sizes());
}

at::Tensor affinities(const OneRank& rank, const at::Tensor& input) {
  const at::Tensor logits =
      at::linear(input.reshape({kTokens, 12}), rank.weight("linear_router.weight"));
  const at::Tensor all = at::softmax(logits, -1);
  const at::Tensor best = std::get<1>(at::topk(logits, rank.model.moe->top_k, -1));
  return at::zeros_like(all).scatter(1, best, all.gather(1, best));
}

void expect_close(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_LE((got - expected).norm().item<double>(), 1e-12 * expected.norm().item<double>());
}

TEST(MoeLayer, IsTheWeightedSumOfTheChosenExperts) {
  for (const bool normalizes : {true, false}) {
    OneRank rank;
    rank.model.moe->normalize_top_k_affinities = normalizes;
    rank.model.moe->routed_scaling_factor = 2.5;
    const Result result = run(rank);
    const at::Tensor input = random({kLength, kBatch, 12}, 1);
    at::Tensor weights = affinities(rank, input);
    if (normalizes) weights = weights / weights.sum(1, true);
    expect_close(result.output, 2.5 * by_hand(rank, input, weights));
    EXPECT_EQ(result.record->layers.at(0).kept.sum().item<std::int64_t>(), kTokens * 2);
  }
}

TEST(MoeLayer, DroplessAndFullCapacityAreTheSame) {
  OneRank dropless, full;
  full.model.moe->dropless = false;
  const Result a = run(dropless), b = run(full);
  expect_close(a.output, b.output);
  expect_close(a.input_grad, b.input_grad);
  ASSERT_EQ(a.grads.size(), b.grads.size());
  for (std::size_t i = 0; i < a.grads.size(); ++i) expect_close(a.grads[i], b.grads[i]);
}

TEST(MoeLayer, PaddingToBlocksChangesNoNumber) {
  OneRank whole, padded;
  whole.model.moe->block_size = 1;
  padded.model.moe->block_size = 4;
  const Result a = run(whole), b = run(padded);
  expect_close(a.output, b.output);
  expect_close(a.input_grad, b.input_grad);
  for (std::size_t i = 0; i < a.grads.size(); ++i) expect_close(a.grads[i], b.grads[i]);
  const RouterRecord::Layer &exact = a.record->layers.at(0), &blocks = b.record->layers.at(0);
  for (std::size_t e = 0; e < exact.computed.size(); ++e) {
    EXPECT_EQ(exact.computed[e], exact.kept[static_cast<std::int64_t>(e)].item<std::int64_t>());
    EXPECT_EQ(blocks.computed[e], rows_of_blocks(exact.computed[e], 4));
  }
  EXPECT_NE(exact.computed, blocks.computed);
}

TEST(MoeLayer, WhatIsDroppedGivesZeroAndTheRestIsNormalisedOverWhatIsKept) {
  OneRank rank;
  rank.model.moe->dropless = false;
  rank.model.moe->capacity_factor = 0.5;
  const Result result = run(rank);
  const at::Tensor input = random({kLength, kBatch, 12}, 1);
  at::Tensor weights = affinities(rank, input);
  const std::int64_t capacity = expert_capacity(kTokens, 2, 0.5, 6);
  weights = weights * weights.gt(0).cumsum(0).le(capacity);
  const at::Tensor sum = weights.sum(1, true);
  weights = weights / sum.clamp_min(1e-300);
  expect_close(result.output, by_hand(rank, input, weights));
  const at::Tensor lost = sum.reshape(-1).eq(0);
  EXPECT_GT(lost.sum().item<std::int64_t>(), 0) << "some token must lose both experts";
  EXPECT_EQ(result.output.reshape({kTokens, 12})
                .masked_select(lost.unsqueeze(1))
                .abs()
                .max()
                .item<double>(),
            0);
  const RouterRecord::Layer& layer = result.record->layers.at(0);
  EXPECT_TRUE(layer.kept.equal(layer.assigned.clamp_max(capacity)));
}

TEST(MoeLayer, SharedExpertsAreAdded) {
  OneRank alone, shared;
  shared.model.moe->num_shared_experts = 2;
  const at::Tensor routed = run(alone).output, both = run(shared).output;
  const at::Tensor input = random({kLength, kBatch, 12}, 1);
  const at::Tensor in = shared.weight("shared_experts.gate_up_proj.weight"),
                   out = shared.weight("shared_experts.down_proj.weight");
  EXPECT_EQ(in.size(0), 2 * 2 * 20);
  const std::vector<at::Tensor> parts = at::linear(input, in).chunk(2, -1);
  expect_close(both - routed, at::linear(at::silu(parts[0]) * parts[1], out));
}

}  // namespace
}  // namespace trellis::trainer
