#include "sim/collectives/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "sim/collectives/outline.h"
#include "sim/collectives/stage_steps.h"
#include "tests/sim/collectives/executed.h"

namespace trellis::sim {
namespace {

using testing::Buffers;
using testing::execute;
using testing::random_buffers;
using testing::sum_of;

/// `nodes` × `chips` × `cores`, the chips of a node as a ring; two rings with disjoint wires when
/// there are as many as in a torus.
GroupLayout grid(int nodes, int chips, int cores) {
  GroupLayout layout;
  layout.cores_per_chip = cores;
  layout.chips_per_node = chips;
  for (int m = 0; m < nodes * chips * cores; ++m) {
    layout.node.push_back(m / (chips * cores));
    layout.chip.push_back(m / cores);
    layout.hypercube.push_back(m / cores % chips ^ (m / cores % chips >> 1));
  }
  std::vector<int> there;
  for (int chip = 0; chip < chips; ++chip) there.push_back(chip);
  layout.chip_rings = {there};
  if (chips >= 5) {
    std::vector<int> every_second;
    for (int chip = 0; chip < chips; ++chip)
      every_second.push_back(chip * 2 % chips + (chips % 2 == 0 && chip >= chips / 2 ? 1 : 0));
    layout.chip_rings.push_back(every_second);
  }
  return layout;
}

/// Members that lie unevenly over three nodes.
GroupLayout uneven(int members, std::mt19937& rng) {
  GroupLayout layout = flat_layout(members);
  layout.cores_per_chip = 4;
  layout.chips_per_node = 4;
  for (int m = 0, core = 0; m < members; ++m, core += 1 + static_cast<int>(rng() % 5)) {
    layout.chip[static_cast<std::size_t>(m)] = core / 4;
    layout.node[static_cast<std::size_t>(m)] = core / 16;
    layout.hypercube[static_cast<std::size_t>(m)] = core / 4;
  }
  return layout;
}

std::vector<GroupLayout> layouts() {
  std::mt19937 rng(7);
  std::vector<GroupLayout> all = {flat_layout(1), flat_layout(2), flat_layout(3), flat_layout(8),
                                  flat_layout(9)};
  for (const auto& [nodes, chips, cores] : std::vector<std::tuple<int, int, int>>{{1, 1, 2},
                                                                                  {1, 1, 4},
                                                                                  {1, 2, 2},
                                                                                  {1, 4, 2},
                                                                                  {1, 3, 4},
                                                                                  {1, 8, 2},
                                                                                  {1, 16, 2},
                                                                                  {2, 1, 2},
                                                                                  {2, 4, 1},
                                                                                  {2, 4, 2},
                                                                                  {3, 2, 2},
                                                                                  {4, 2, 4},
                                                                                  {2, 5, 2}}) {
    all.push_back(grid(nodes, chips, cores));
  }
  for (int i = 0; i < 6; ++i) all.push_back(uneven(2 + static_cast<int>(rng() % 12), rng));
  return all;
}

/// Every algorithm that the group can run; hierarchical ones with every pair of stages.
std::vector<AlgorithmChoice> choices(CollectiveKind kind, const GroupLayout& layout) {
  std::vector<AlgorithmChoice> all;
  for (int a = 0; a < kNumAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (!why_unavailable(algorithm, kind, layout).empty()) continue;
    if (algorithm != Algorithm::kHierarchical) {
      all.push_back({algorithm});
      continue;
    }
    const GroupLayout node = inside_one_node(layout);
    for (const Algorithm inside :
         {Algorithm::kRing, Algorithm::kMesh, Algorithm::kHalvingDoubling, Algorithm::kKangaRing}) {
      if (!why_unavailable(inside, kind, node).empty()) continue;
      for (const Algorithm across :
           {Algorithm::kRing, Algorithm::kMesh, Algorithm::kHalvingDoubling}) {
        if (why_unavailable(across, kind, flat_layout(layout.nodes())).empty())
          all.push_back({algorithm, inside, across});
      }
    }
  }
  return all;
}

constexpr std::int64_t kSizes[] = {0, 1, 7, 64, 1001};

template <typename Check>
void for_each_plan(CollectiveKind kind, const Check& check) {
  for (const GroupLayout& layout : layouts()) {
    if (kind == CollectiveKind::kSendRecv && layout.members() != 2) continue;
    for (const AlgorithmChoice& choice : choices(kind, layout)) {
      for (std::int64_t elements : kSizes) {
        if (kind == CollectiveKind::kAllToAll) elements -= elements % layout.members();
        const PlanOutline outline = make_outline(kind, choice, layout, elements);
        SCOPED_TRACE(describe(choice) + ", " + std::to_string(layout.members()) + " members, " +
                     std::to_string(layout.members_per_chip()) + " per chip, " +
                     std::to_string(elements));
        check(outline, elements);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

Buffers executed(const PlanOutline& outline, const Buffers& before) {
  Buffers after = before;
  const CommPlan plan = expand(outline);
  if (plan.second_buffer) {
    execute(plan, before, after);
  } else {
    execute(plan, after, after);
  }
  return after;
}

TEST(Plans, AllReduceSumsEverywhere) {
  for_each_plan(CollectiveKind::kAllReduce, [](const PlanOutline& outline, std::int64_t elements) {
    const Buffers before = random_buffers(outline.members, elements, 17);
    for (const auto& buffer : executed(outline, before)) ASSERT_EQ(buffer, sum_of(before));
  });
}

TEST(Plans, ReduceScatterSumsEachOwnersPart) {
  for_each_plan(CollectiveKind::kReduceScatter,
                [](const PlanOutline& outline, std::int64_t elements) {
                  const Buffers before = random_buffers(outline.members, elements, 19);
                  const auto sum = sum_of(before);
                  const Buffers after = executed(outline, before);
                  for (int m = 0; m < outline.members; ++m) {
                    const Chunk own = chunk_range(elements, outline.members, m);
                    for (std::int64_t i = own.begin; i < own.begin + own.length; ++i)
                      ASSERT_EQ(after[m][i], sum[i]);
                  }
                });
}

TEST(Plans, AllGatherCollectsAllParts) {
  for_each_plan(CollectiveKind::kAllGather, [](const PlanOutline& outline, std::int64_t elements) {
    const Buffers full = random_buffers(1, elements, 23);
    Buffers before(outline.members, std::vector<std::int64_t>(elements, -1));
    for (int m = 0; m < outline.members; ++m) {
      const Chunk own = chunk_range(elements, outline.members, m);
      std::copy_n(full[0].begin() + own.begin, own.length, before[m].begin() + own.begin);
    }
    for (const auto& buffer : executed(outline, before)) ASSERT_EQ(buffer, full[0]);
  });
}

TEST(Plans, AllToAllTransposesTheBlocks) {
  for_each_plan(CollectiveKind::kAllToAll, [](const PlanOutline& outline, std::int64_t elements) {
    const Buffers in = random_buffers(outline.members, elements, 5);
    const Buffers out = executed(outline, in);
    const std::int64_t block = elements / outline.members;
    for (int to = 0; to < outline.members; ++to) {
      for (int from = 0; from < outline.members; ++from) {
        if (to == from) continue;
        for (int i = 0; i < block; ++i)
          ASSERT_EQ(out[to][from * block + i], in[from][to * block + i]);
      }
    }
  });
}

TEST(Plans, BroadcastTransferAndPermutationDeliver) {
  for_each_plan(CollectiveKind::kBroadcast, [](const PlanOutline& outline, std::int64_t elements) {
    const Buffers before = random_buffers(outline.members, elements, 3);
    for (const auto& buffer : executed(outline, before)) ASSERT_EQ(buffer, before[0]);
  });
  for_each_plan(CollectiveKind::kSendRecv, [](const PlanOutline& outline, std::int64_t elements) {
    const Buffers before = random_buffers(2, elements, 3);
    ASSERT_EQ(executed(outline, before)[1], before[0]);
  });
  for_each_plan(CollectiveKind::kPermute, [](const PlanOutline& outline, std::int64_t elements) {
    const Buffers before = random_buffers(outline.members, elements, 3);
    const Buffers after = executed(outline, before);
    for (int m = 0; m < outline.members; ++m)
      ASSERT_EQ(after[(m + 1) % outline.members], before[m]);
  });
}

/// Steps of one round do not read what another step of the round writes, and no two of them store
/// into the same place.
void expect_independent_rounds(const CommPlan& plan) {
  const auto meet = [](std::int64_t a, std::int64_t b, std::int64_t a_length,
                       std::int64_t b_length) { return a < b + b_length && b < a + a_length; };
  for (const PlanStep& a : plan.steps) {
    for (const PlanStep& b : plan.steps) {
      if (a.round != b.round || &a == &b) continue;
      const bool read_while_written =
          !plan.second_buffer && a.to == b.from && meet(a.target, b.source, a.length, b.length);
      const bool written_twice =
          a.to == b.to && !(a.reduce && b.reduce) && meet(a.target, b.target, a.length, b.length);
      ASSERT_FALSE(read_while_written || written_twice) << "round " << a.round;
    }
  }
}

TEST(Plans, RoundsAreIndependent) {
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast,
                                    CollectiveKind::kAllToAll, CollectiveKind::kPermute}) {
    for (const GroupLayout& layout : layouts()) {
      if (layout.members() > 12) continue;
      for (const AlgorithmChoice& choice : choices(kind, layout))
        expect_independent_rounds(expand(
            make_outline(kind, choice, layout,
                         24 * layout.members() + (kind == CollectiveKind::kAllToAll ? 0 : 1))));
    }
  }
}

/// Nodes whose members lie alike are written once: an outline grows with its members, not with
/// their square.
TEST(Plans, AnOutlineGrowsWithItsMembers) {
  for (const int nodes : {16, 256}) {
    const GroupLayout layout = grid(nodes, 4, 1);
    for (const AlgorithmChoice& choice : choices(CollectiveKind::kAllGather, layout)) {
      if (choice.algorithm != Algorithm::kHierarchical) continue;
      const PlanOutline outline =
          make_outline(CollectiveKind::kAllGather, choice, layout, 1000 * layout.members());
      std::size_t pieces = 0;
      for (const PlanStage& stage : outline.stages) {
        for (const Line& line : stage.lines) {
          for (const auto& owned : line.owned) pieces += owned.size();
        }
      }
      EXPECT_LE(pieces, 4U * static_cast<std::size_t>(layout.members())) << describe(choice);
    }
  }
}

TEST(Plans, TrafficIsWhatTheStepsMove) {
  using Key = std::tuple<int, int, bool, bool>;
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast, CollectiveKind::kPermute,
        CollectiveKind::kBarrier}) {
    for_each_plan(kind, [](const PlanOutline& outline, std::int64_t) {
      for (const PlanStage& stage : outline.stages) {
        std::map<Key, std::int64_t> moved;
        std::map<Key, std::int64_t> counted;
        std::set<int> rounds;
        for_each_step(stage, 0, [&](const PlanStep& s) {
          moved[{s.from, s.to, s.reduce, s.fused}] += s.length;
          rounds.insert(s.round);
        });
        for (const StageTraffic& part : traffic(stage)) {
          for (const Flow& f : part.flows) counted[{f.from, f.to, f.reduce, f.fused}] += f.elements;
        }
        ASSERT_EQ(moved, counted);
        ASSERT_LE(static_cast<int>(rounds.size()), round_count(stage));
      }
    });
  }
}

TEST(Plans, SendWhatTheTheorySays) {
  for (int n : {2, 3, 4, 8, 32}) {
    const std::int64_t s = 64LL * n;
    for (auto sent : elements_sent(ring_plan(CollectiveKind::kAllReduce, n, s)))
      EXPECT_EQ(sent, 2 * (n - 1) * s / n);
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
      for (auto sent : elements_sent(ring_plan(kind, n, s))) EXPECT_EQ(sent, (n - 1) * s / n);
    }
  }
  // Between nodes only a chunk per local index travels: 2(N−1)/N · S/L per member.
  const AlgorithmChoice choice{Algorithm::kHierarchical, Algorithm::kRing, Algorithm::kRing};
  const CommPlan plan =
      expand(make_outline(CollectiveKind::kAllReduce, choice, grid(4, 4, 2), 64 * 32));
  std::int64_t across = 0;
  for (const auto& step : plan.steps)
    across += step.from / 8 != step.to / 8 && step.from == 5 ? step.length : 0;
  EXPECT_EQ(across, 2 * 3 * 64 * 32 / 4 / 8);
}

TEST(Plans, KangaRingTakesHalfTheRoundsOfTheRing) {
  const GroupLayout layout = grid(1, 16, 4);
  const auto rounds = [&](Algorithm algorithm) {
    return round_count(make_outline(CollectiveKind::kAllGather, {algorithm}, layout, 64).stages[0]);
  };
  EXPECT_EQ(rounds(Algorithm::kRing), 63);
  EXPECT_EQ(rounds(Algorithm::kKangaRing), 33);
}

TEST(Plans, OneMemberNeedsNoMessage) {
  for (auto kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
        CollectiveKind::kBroadcast, CollectiveKind::kBarrier}) {
    EXPECT_TRUE(ring_plan(kind, 1, 100).steps.empty());
  }
}

}  // namespace
}  // namespace trellis::sim
