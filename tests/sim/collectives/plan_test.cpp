#include "sim/collectives/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "sim/collectives/hierarchical.h"
#include "sim/collectives/ring.h"

namespace trellis::sim {
namespace {

using Buffers = std::vector<std::vector<std::int64_t>>;

Buffers random_buffers(int members, std::int64_t elements, std::uint32_t seed) {
  std::mt19937 rng(seed);
  Buffers buffers(members, std::vector<std::int64_t>(elements));
  for (auto& buffer : buffers) {
    for (auto& x : buffer) x = rng() % 1000;
  }
  return buffers;
}

/// Executes a plan as its comments say: all messages of a round leave before any of them arrives.
void execute(const CommPlan& plan, const Buffers& source, Buffers& target) {
  for (std::size_t begin = 0; begin < plan.steps.size();) {
    std::size_t end = begin;
    std::vector<std::vector<std::int64_t>> messages;
    for (; end < plan.steps.size() && plan.steps[end].round == plan.steps[begin].round; ++end) {
      const PlanStep& s = plan.steps[end];
      const auto first = source[s.from].begin() + s.source;
      messages.emplace_back(first, first + s.length);
    }
    for (std::size_t i = begin; i < end; ++i) {
      const PlanStep& s = plan.steps[i];
      for (std::int64_t k = 0; k < s.length; ++k) {
        auto& cell = target[s.to][s.target + k];
        cell = messages[i - begin][k] + (s.reduce ? cell : 0);
      }
    }
    begin = end;
  }
}

std::vector<std::int64_t> sum_of(const Buffers& buffers) {
  std::vector<std::int64_t> sum(buffers[0].size());
  for (const auto& buffer : buffers) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += buffer[i];
  }
  return sum;
}

/// Steps of one round do not read what another step of the round writes.
void expect_independent_rounds(const CommPlan& plan) {
  for (const PlanStep& a : plan.steps) {
    for (const PlanStep& b : plan.steps) {
      if (a.round != b.round || a.to != b.from || &a == &b) continue;
      EXPECT_FALSE(a.target < b.source + b.length && b.source < a.target + a.length) << "round " << a.round;
    }
  }
}

using Planner = std::function<CommPlan(CollectiveKind, int, std::int64_t)>;

void expect_all_reduce(const Planner& planner, int n, std::int64_t elements) {
  const Buffers before = random_buffers(n, elements, 17 + n);
  Buffers work = before;
  execute(planner(CollectiveKind::kAllReduce, n, elements), work, work);
  for (int m = 0; m < n; ++m) ASSERT_EQ(work[m], sum_of(before)) << n << " members, " << elements << " elements";
}

void expect_reduce_scatter(const Planner& planner, int n, std::int64_t elements) {
  const Buffers before = random_buffers(n, elements, 19 + n);
  Buffers work = before;
  execute(planner(CollectiveKind::kReduceScatter, n, elements), work, work);
  const auto sum = sum_of(before);
  for (int m = 0; m < n; ++m) {
    const Chunk own = chunk_range(elements, n, m);
    for (std::int64_t i = own.begin; i < own.begin + own.length; ++i) ASSERT_EQ(work[m][i], sum[i]) << n << " members, " << elements << " elements";
  }
}

void expect_all_gather(const Planner& planner, int n, std::int64_t elements) {
  const Buffers full = random_buffers(1, elements, 23 + n);
  Buffers work(n, std::vector<std::int64_t>(elements, -1));
  for (int m = 0; m < n; ++m) {
    const Chunk own = chunk_range(elements, n, m);
    std::copy_n(full[0].begin() + own.begin, own.length, work[m].begin() + own.begin);
  }
  execute(planner(CollectiveKind::kAllGather, n, elements), work, work);
  for (int m = 0; m < n; ++m) ASSERT_EQ(work[m], full[0]) << n << " members, " << elements << " elements";
}

TEST(RingPlan, ReducesAndGathersLikeTheNaiveWay) {
  for (int n = 1; n <= 9; ++n) {
    for (std::int64_t elements : {0, 1, 2, 7, 64, 65, 1000}) {
      expect_all_reduce(ring_plan, n, elements);
      expect_reduce_scatter(ring_plan, n, elements);
      expect_all_gather(ring_plan, n, elements);
    }
  }
}

TEST(HierarchicalPlan, ReducesAndGathersLikeTheNaiveWay) {
  for (int nodes = 2; nodes <= 4; ++nodes) {
    for (int locals = 2; locals <= 5; ++locals) {
      const Planner planner = [&](CollectiveKind kind, int, std::int64_t elements) { return hierarchical_plan(kind, nodes, locals, elements); };
      for (std::int64_t elements : {1, 7, 60, 1001}) {
        expect_all_reduce(planner, nodes * locals, elements);
        expect_reduce_scatter(planner, nodes * locals, elements);
        expect_all_gather(planner, nodes * locals, elements);
      }
    }
  }
}

TEST(RingPlan, AllToAllTransposesTheBlocks) {
  for (int n = 1; n <= 8; ++n) {
    const std::int64_t block = 3;
    const Buffers in = random_buffers(n, n * block, 5 + n);
    Buffers out(n, std::vector<std::int64_t>(n * block, -1));
    for (int m = 0; m < n; ++m) std::copy_n(in[m].begin() + m * block, block, out[m].begin() + m * block);
    execute(ring_plan(CollectiveKind::kAllToAll, n, n * block), in, out);
    for (int to = 0; to < n; ++to) {
      for (int from = 0; from < n; ++from) {
        for (int i = 0; i < block; ++i) ASSERT_EQ(out[to][from * block + i], in[from][to * block + i]);
      }
    }
  }
}

TEST(RingPlan, BroadcastAndTransferDeliver) {
  for (int n = 1; n <= 6; ++n) {
    for (std::int64_t elements : {1, 5, 16, 100}) {
      Buffers work = random_buffers(n, elements, 3);
      const auto root = work[0];
      execute(ring_plan(CollectiveKind::kBroadcast, n, elements), work, work);
      for (const auto& buffer : work) ASSERT_EQ(buffer, root);
    }
  }
  Buffers work = random_buffers(2, 10, 4);
  const auto source = work[0];
  execute(ring_plan(CollectiveKind::kSendRecv, 2, 10), work, work);
  EXPECT_EQ(work[1], source);
}

TEST(RingPlan, RoundsAreIndependent) {
  for (int n = 2; n <= 6; ++n) {
    expect_independent_rounds(ring_plan(CollectiveKind::kAllReduce, n, 61));
    expect_independent_rounds(ring_plan(CollectiveKind::kBroadcast, n, 61));
  }
  expect_independent_rounds(hierarchical_plan(CollectiveKind::kAllReduce, 3, 4, 121));
}

TEST(RingPlan, SendsWhatTheTheorySays) {
  for (int n : {2, 3, 4, 8, 32}) {
    const std::int64_t s = 64LL * n;
    for (auto sent : elements_sent(ring_plan(CollectiveKind::kAllReduce, n, s))) EXPECT_EQ(sent, 2 * (n - 1) * s / n);
    for (auto sent : elements_sent(ring_plan(CollectiveKind::kAllGather, n, s))) EXPECT_EQ(sent, (n - 1) * s / n);
    for (auto sent : elements_sent(ring_plan(CollectiveKind::kReduceScatter, n, s))) EXPECT_EQ(sent, (n - 1) * s / n);
    for (auto sent : elements_sent(ring_plan(CollectiveKind::kAllToAll, n, s))) EXPECT_EQ(sent, (n - 1) * s / n);
  }
  // Between nodes only a chunk per local index travels: 2(N−1)/N · S/L per member.
  const CommPlan plan = hierarchical_plan(CollectiveKind::kAllReduce, 4, 8, 64 * 32);
  std::int64_t across = 0;
  for (const auto& step : plan.steps) across += step.from / 8 != step.to / 8 && step.from == 5 ? step.length : 0;
  EXPECT_EQ(across, 2 * 3 * 64 * 32 / 4 / 8);
}

TEST(RingPlan, OneMemberNeedsNoMessage) {
  for (auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kAllToAll, CollectiveKind::kBroadcast, CollectiveKind::kBarrier}) {
    EXPECT_TRUE(ring_plan(kind, 1, 100).steps.empty());
  }
}

}  // namespace
}  // namespace trellis::sim
