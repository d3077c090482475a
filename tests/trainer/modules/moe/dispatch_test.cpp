#include "trainer/modules/moe/dispatch.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/trainer/modules/moe/one_rank.h"

namespace trellis::trainer::dispatch_test {
namespace {

using testing_support::random;

constexpr std::int64_t kTokens = 37, kExperts = 5, kTop = 2;

at::Tensor picks() { return std::get<1>(at::topk(random({kTokens, kExperts}, 8), kTop, -1)); }

/// Compares the plan of every pick with one that a loop over tokens makes.
void expect_as_by_hand(const DispatchPlan& plan, const at::Tensor& experts) {
  std::vector<std::int64_t> assigned(kExperts, 0), kept(kExperts, 0);
  std::vector<std::vector<std::int64_t>> slots(kExperts);
  for (std::int64_t pick = 0; pick < kTokens * kTop; ++pick) {
    const auto e = static_cast<std::size_t>(experts.reshape(-1)[pick].item<std::int64_t>());
    ++assigned[e];
    if (plan.capacity > 0 && std::ssize(slots[e]) == plan.capacity) {
      EXPECT_EQ(plan.pick_slot[pick].item<std::int64_t>(), plan.slots) << "pick " << pick;
      continue;
    }
    ++kept[e];
    slots[e].push_back(pick);
  }
  std::int64_t slot = 0;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const auto& of_expert = slots[static_cast<std::size_t>(e)];
    if (plan.capacity > 0) slot = e * plan.capacity;
    for (const std::int64_t pick : of_expert) {
      EXPECT_EQ(plan.pick_slot[pick].item<std::int64_t>(), slot);
      EXPECT_EQ(plan.slot_pick[slot++].item<std::int64_t>(), pick);
    }
    for (; plan.capacity > 0 && slot < (e + 1) * plan.capacity; ++slot)
      EXPECT_EQ(plan.slot_pick[slot].item<std::int64_t>(), kTokens * kTop) << "an empty slot";
    EXPECT_EQ(plan.assigned[e].item<std::int64_t>(), assigned[static_cast<std::size_t>(e)]);
    EXPECT_EQ(plan.kept[e].item<std::int64_t>(), kept[static_cast<std::size_t>(e)]);
  }
}

TEST(Dispatch, KeepsPicksInTheOrderOfTokens) {
  for (const std::int64_t capacity : {0, 1, 7, 15, 37})
    expect_as_by_hand(plan_dispatch(picks(), kExperts, capacity), picks());
}

TEST(Dispatch, AnExpertsSlotsAreWholeBlocks) {
  constexpr std::int64_t kBlock = 8;
  const at::Tensor experts = picks();
  const DispatchPlan plan = plan_dispatch(experts, kExperts, 0);
  const auto* kept = plan.kept.const_data_ptr<std::int64_t>();
  const DispatchPlan blocks = in_blocks(plan, experts, {kept, kept + kExperts}, kBlock);
  std::int64_t slot = 0, before = 0;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const std::int64_t rows = rows_of_blocks(kept[e], kBlock);
    EXPECT_EQ(rows % kBlock, 0);
    EXPECT_LT(rows - kept[e], kBlock);
    for (std::int64_t i = 0; i < rows; ++i, ++slot) {
      const std::int64_t expected =
          i < kept[e] ? plan.slot_pick[before + i].item<std::int64_t>() : kTokens * kTop;
      EXPECT_EQ(blocks.slot_pick[slot].item<std::int64_t>(), expected);
      if (i < kept[e]) {
        EXPECT_EQ(blocks.pick_slot[expected].item<std::int64_t>(), slot);
      }
    }
    before += kept[e];
  }
  EXPECT_EQ(blocks.slots, slot);
  EXPECT_GT(blocks.slots, plan.slots);
}

TEST(Dispatch, CapacityIsTheEvenShareTimesTheFactorAndAtMostAllTokens) {
  EXPECT_EQ(expert_capacity(100, 2, 1.0, 8), 25);
  EXPECT_EQ(expert_capacity(100, 2, 1.01, 8), 26);
  EXPECT_EQ(expert_capacity(100, 1, 0.001, 8), 1);
  EXPECT_EQ(expert_capacity(100, 2, 4.0, 8), 100);
  EXPECT_EQ(expert_capacity(100, 2, 9.0, 8), 100);
}

/// The gathering derivative against that of LibTorch's index_select.
TEST(Dispatch, RowsAndTheirGradientsGoWhereTheyBelong) {
  for (const std::int64_t capacity : {0, 9}) {
    const DispatchPlan plan = plan_dispatch(picks(), kExperts, capacity);
    const at::Tensor tokens = random({kTokens, 4}, 1).requires_grad_();
    const at::Tensor weights = random({plan.slots, 4}, 2);
    const at::Tensor back = from_slots(to_slots(tokens, plan) * weights, plan);
    const at::Tensor loss = random({kTop, kTokens, 4}, 3);
    (back * loss).sum().backward();

    const at::Tensor plain = tokens.detach().clone().requires_grad_();
    const at::Tensor repeated = plain.repeat_interleave(kTop, 0);
    const at::Tensor zero = at::zeros({1, 4}, repeated.options());
    const at::Tensor slots = at::cat({repeated, zero}).index_select(0, plan.slot_pick) * weights;
    const at::Tensor expected = at::cat({slots, zero})
                                    .index_select(0, plan.pick_slot)
                                    .view({kTokens, kTop, 4})
                                    .transpose(0, 1);
    (expected * loss).sum().backward();
    EXPECT_TRUE(at::equal(back, expected));
    EXPECT_TRUE(at::allclose(tokens.grad(), plain.grad(), 1e-13, 1e-13));
  }
}

}  // namespace
}  // namespace trellis::trainer::dispatch_test
