#include "sim/collectives/plan.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/collectives/ring.h"

namespace trellis::sim {
namespace {

// Enough pieces that the chain of a broadcast is busy on all its links most of the time.
constexpr int kBroadcastPieces = 16;

Ring whole_ring(int members, std::int64_t elements) {
  Ring ring;
  for (int m = 0; m < members; ++m) {
    ring.members.push_back(m);
    ring.owned.push_back({chunk_range(elements, members, m)});
  }
  return ring;
}

/// Member 0 → 1 → … → n-1, in pieces that follow one another.
void build_broadcast(CommPlan& plan) {
  const int pieces = static_cast<int>(std::min<std::int64_t>(kBroadcastPieces, plan.elements));
  const int rounds = pieces + plan.members - 2;
  for (int round = 0; round < rounds; ++round) {
    for (int member = 0; member + 1 < plan.members; ++member) {
      const int piece = round - member;
      if (piece < 0 || piece >= pieces) continue;
      const Chunk range = chunk_range(plan.elements, pieces, piece);
      plan.steps.push_back({round, member, member + 1, range.begin, range.begin, range.length, false});
    }
  }
}

/// Round r pairs i with (r − i) mod n: every pair meets once, and both directions of a pair run together.
void build_all_to_all(CommPlan& plan) {
  const int n = plan.members;
  TRELLIS_CHECK(plan.elements % n == 0, "an all-to-all sends one block of the same size to each member");
  const std::int64_t block = plan.elements / n;
  if (block == 0) return;
  for (int round = 0; round < n; ++round) {
    for (int from = 0; from < n; ++from) {
      const int to = (round - from + n) % n;
      if (to != from) plan.steps.push_back({round, from, to, to * block, from * block, block, false});
    }
  }
}

}  // namespace

std::string_view name(CollectiveKind kind) {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "barrier"});
  return kNames.at(static_cast<std::size_t>(kind));
}

CommPlan ring_plan(CollectiveKind kind, int members, std::int64_t elements) {
  TRELLIS_CHECK(members >= 1 && elements >= 0, "a collective has at least one member and no negative size");
  CommPlan plan{kind, members, kind == CollectiveKind::kBarrier ? 1 : elements, {}};
  if (members == 1) return plan;
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBarrier:
      append_reduce_scatter(plan, whole_ring(members, plan.elements), 0);
      append_all_gather(plan, whole_ring(members, plan.elements), members - 1);
      break;
    case CollectiveKind::kReduceScatter: append_reduce_scatter(plan, whole_ring(members, elements), 0); break;
    case CollectiveKind::kAllGather: append_all_gather(plan, whole_ring(members, elements), 0); break;
    case CollectiveKind::kAllToAll: build_all_to_all(plan); break;
    case CollectiveKind::kBroadcast: build_broadcast(plan); break;
    case CollectiveKind::kSendRecv:
      TRELLIS_CHECK(members == 2, "a transfer has two members");
      if (elements > 0) plan.steps.push_back({0, 0, 1, 0, 0, elements, false});
      break;
  }
  return plan;
}

std::vector<std::int64_t> elements_sent(const CommPlan& plan) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(plan.members), 0);
  for (const PlanStep& step : plan.steps) sent[static_cast<std::size_t>(step.from)] += step.length;
  return sent;
}

}  // namespace trellis::sim
