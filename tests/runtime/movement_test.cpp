// The plan that moves the bytes: what it counts, what it delivers, and that a broken plan moves
// broken data.
#include <numeric>

#include "runtime/calls/movement.h"
#include "sim/collectives/outline.h"
#include "tests/runtime/support.h"

namespace trellis::runtime::testing {
namespace {

using sim::CollectiveKind;

TEST(BytesSent, AreThoseOfThePlan) {
  for (int n : {1, 2, 3, 8}) {
    for (std::int64_t elements : {840, 1003}) {
      const auto all_reduce =
          sim::elements_sent(sim::ring_plan(CollectiveKind::kAllReduce, n, elements));
      const auto gather =
          sim::elements_sent(sim::ring_plan(CollectiveKind::kAllGather, n, n * elements));
      run_ranks(world(n), [&](RankContext& context) {
        auto group = context.new_group("dp", all_ranks(n));
        const auto me = static_cast<std::size_t>(context.rank());
        Tensors tensors{at::ones({elements}, at::kBFloat16)};
        group->allreduce(tensors)->wait();
        EXPECT_EQ(context.bytes_sent(), 2 * all_reduce[me]);
        if (elements % n == 0) {
          EXPECT_EQ(context.bytes_sent(), 2 * 2 * (n - 1) * elements / n);
        }

        const std::int64_t before = context.bytes_sent();
        at::Tensor whole = at::empty({n * elements}, at::kBFloat16);
        group->all_gather_single(whole, tensors[0])->wait();
        EXPECT_EQ(context.bytes_sent() - before, 2 * gather[me]);
        EXPECT_EQ(context.bytes_sent() - before, 2 * (n - 1) * elements);
      });
    }
  }
}

TEST(BytesSent, BroadcastCountsFromTheRoot) {
  run_ranks(world(4), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(4));
    Tensors tensors{at::ones({100})};
    c10d::BroadcastOptions options;
    options.rootRank = 2;
    group->broadcast(tensors, options)->wait();
    // A chain 2 → 3 → 0 → 1: the last member sends nothing.
    EXPECT_EQ(context.bytes_sent(), context.rank() == 1 ? 0 : 400);
  });
}

TEST(BytesSent, UnevenExchangeAndMessagesCountWhatLeavesTheRank) {
  run_ranks(world(2), [](RankContext& context) {
    auto group = context.new_group("ep", {0, 1});
    const bool first = context.rank() == 0;
    at::Tensor in = at::ones({first ? 7 : 4});
    at::Tensor out = at::ones({first ? 5 : 6});
    std::vector<std::int64_t> in_splits =
        first ? std::vector<std::int64_t>{2, 5} : std::vector<std::int64_t>{3, 1};
    std::vector<std::int64_t> out_splits =
        first ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{5, 1};
    group->all_to_all_single(out, in, out_splits, in_splits)->wait();
    EXPECT_EQ(context.bytes_sent(), first ? 20 : 12);
  });
}

/// One member's buffers: a whole tensor as input and as output.
struct Buffers {
  std::vector<float> in;
  std::vector<float> out;
  MemberBuffers pieces;
  Buffers(std::int64_t elements, float value)
      : in(static_cast<std::size_t>(elements), value), out(static_cast<std::size_t>(elements), -1) {
    pieces.inputs = {{0, elements, reinterpret_cast<std::byte*>(in.data())}};
    pieces.outputs = {{0, elements, reinterpret_cast<std::byte*>(out.data())}};
  }
};

std::vector<std::vector<float>> executed(const sim::CommPlan& plan) {
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<const MemberBuffers*> members;
  for (int m = 0; m < plan.members; ++m) {
    buffers.push_back(std::make_unique<Buffers>(plan.elements, static_cast<float>(1 << m)));
    members.push_back(&buffers.back()->pieces);
  }
  const Movement movement = execute_plan(plan);
  move_bytes(movement, members, 0, total_length(movement), c10::ScalarType::Float, Reduction::kSum);
  std::vector<std::vector<float>> result;
  for (const auto& b : buffers) result.push_back(b->out);
  return result;
}

TEST(ExecutePlan, DeliversWhatTheStepsSayAndNothingElse) {
  auto plan = sim::ring_plan(CollectiveKind::kAllReduce, 4, 8);
  for (const auto& member : executed(plan)) EXPECT_THAT(member, ::testing::Each(15.0f));

  // Without the last step, one member misses one chunk's sum; everything else stays.
  const sim::PlanStep lost = plan.steps.back();
  plan.steps.pop_back();
  const auto broken = executed(plan);
  for (int m = 0; m < 4; ++m) {
    for (std::int64_t i = 0; i < 8; ++i) {
      const bool is_lost = m == lost.to && i >= lost.target && i < lost.target + lost.length;
      EXPECT_EQ(broken[static_cast<std::size_t>(m)][static_cast<std::size_t>(i)] == 15.0f, !is_lost)
          << "member " << m << ", element " << i;
    }
  }
}

TEST(ExecutePlan, RefusesToCountAContributionTwice) {
  auto plan = sim::ring_plan(CollectiveKind::kReduceScatter, 3, 6);
  plan.steps.push_back(plan.steps.front());
  EXPECT_THROW(static_cast<void>(execute_plan(plan)), c10::Error);
}

TEST(ExecutePlan, EveryMemberCountAndPlanKindSumsToTheSame) {
  for (int n : {1, 2, 3, 7, 16}) {
    const auto movement = execute_plan(sim::ring_plan(CollectiveKind::kAllReduce, n, 1000));
    EXPECT_EQ(total_length(movement), 1000);
    for (const Delivery& delivery : movement.deliveries) {
      EXPECT_EQ(delivery.from, all_ranks(n));
      EXPECT_EQ(delivery.to, all_ranks(n));
    }
    const auto scatter = execute_plan(sim::ring_plan(CollectiveKind::kReduceScatter, n, n * 10));
    for (const Delivery& delivery : scatter.deliveries) {
      EXPECT_EQ(delivery.from, all_ranks(n));
      EXPECT_EQ(delivery.to, std::vector<int>{static_cast<int>(delivery.target / 10)});
    }
  }
}

TEST(MoveBytes, PartsAndPiecesCutAnywhere) {
  constexpr std::int64_t kLength = 5000;
  const auto movement = execute_plan(sim::ring_plan(CollectiveKind::kAllReduce, 3, kLength));
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<const MemberBuffers*> members;
  for (int m = 0; m < 3; ++m) {
    auto b = std::make_unique<Buffers>(kLength, 0.0f);
    std::iota(b->in.begin(), b->in.end(), static_cast<float>(m));
    const auto cut = static_cast<std::int64_t>(777 * (m + 1));
    for (auto* pieces : {&b->pieces.inputs, &b->pieces.outputs}) {
      const Piece whole = pieces->front();
      *pieces = {{0, cut, whole.data}, {cut, kLength - cut, whole.data + cut * 4}};
    }
    members.push_back(&b->pieces);
    buffers.push_back(std::move(b));
  }
  for (std::int64_t begin = 0; begin < kLength; begin += 313) {
    move_bytes(movement, members, begin, std::min(begin + 313, kLength), c10::ScalarType::Float,
               Reduction::kSum);
  }
  for (const auto& b : buffers) {
    for (std::int64_t i = 0; i < kLength; ++i)
      ASSERT_EQ(b->out[static_cast<std::size_t>(i)], static_cast<float>(3 * i + 3)) << i;
  }
}

TEST(Reductions, NanWinsAndHalvesRoundAfterEachMember) {
  run_ranks(world(3), [](RankContext& context) {
    auto group = context.new_group("dp", all_ranks(3));
    for (auto op : {c10d::ReduceOp::MIN, c10d::ReduceOp::MAX, c10d::ReduceOp::SUM}) {
      Tensors tensors{at::tensor({1.0f, context.rank() == 1 ? NAN : 2.0f})};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      group->allreduce(tensors, options)->wait();
      EXPECT_FALSE(std::isnan(tensors[0][0].item<float>()));
      EXPECT_TRUE(std::isnan(tensors[0][1].item<float>()));
    }
    // 256 + 1 + 1 in bfloat16: each sum is rounded on the wire, and 257 is no bfloat16.
    Tensors tensors{at::tensor({context.rank() == 0 ? 256.0f : 1.0f}).to(at::kBFloat16)};
    group->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].item<float>(), 256.0f);
  });
}

TEST(Reductions, BooleansAreOrAndAnd) {
  run_ranks(world(2), [](RankContext& context) {
    auto group = context.new_group("dp", {0, 1});
    const auto reduce = [&](c10d::ReduceOp::RedOpType op, bool mine) {
      Tensors tensors{at::full({1}, mine, at::kBool)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      group->allreduce(tensors, options)->wait();
      return tensors[0].item<bool>();
    };
    EXPECT_TRUE(reduce(c10d::ReduceOp::MAX, context.rank() == 0));
    EXPECT_TRUE(reduce(c10d::ReduceOp::SUM, true));
    EXPECT_FALSE(reduce(c10d::ReduceOp::MIN, context.rank() == 0));
  });
}

}  // namespace
}  // namespace trellis::runtime::testing
