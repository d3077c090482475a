#include "sim/job/rank_fold.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::sim {
namespace {

using Group = std::vector<int>;

/// TP 4 × DP 3 × PP 2, TP fastest.
const std::vector<int> kMesh{4, 3, 2};
RankFold stages() { return RankFold::along_axes(kMesh, {true, true, false}); }

std::set<std::set<int>> as_sets(const std::vector<Group>& groups) {
  std::set<std::set<int>> sets;
  for (const Group& group : groups) sets.emplace(group.begin(), group.end());
  return sets;
}

TEST(RankFold, EmptyMeansThatEveryRankIsItself) {
  const RankFold none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.seat(7), 7);
  EXPECT_EQ(none.represents(7), 1);
  EXPECT_EQ(none.equal_groups({3, 4}), (std::vector<Group>{{3, 4}}));
}

TEST(RankFold, TheLowestRankRepresentsThoseThatAreEqual) {
  const RankFold fold = stages();
  EXPECT_EQ(fold.world_size(), 24);
  EXPECT_EQ(fold.representatives(), (Group{0, 12}));
  for (int rank = 0; rank < 24; ++rank) EXPECT_EQ(fold.seat(rank), rank / 12) << rank;
  EXPECT_EQ(fold.represents(0), 12);
  EXPECT_EQ(fold.represents(1), 12);
}

TEST(RankFold, AnyPartitionHasOneRepresentativePerClass) {
  // DP 3 with its last rank separate, as when one core is slow.
  std::vector<int> equal_to;
  for (int rank = 0; rank < 24; ++rank)
    equal_to.push_back(rank / 12 * 12 + (rank / 4 % 3 == 2 ? 8 : 0));
  const RankFold fold = RankFold::with_classes(kMesh, equal_to);
  EXPECT_EQ(fold.representatives(), (Group{0, 8, 12, 20}));
  EXPECT_EQ(fold.represents(0), 8);
  EXPECT_EQ(fold.represents(1), 4);
  int all = 0;
  for (std::size_t seat = 0; seat < fold.representatives().size(); ++seat)
    all += fold.represents(static_cast<int>(seat));
  EXPECT_EQ(all, fold.world_size());
  EXPECT_EQ(as_sets(fold.equal_groups({8, 9, 10, 11})), (std::set<std::set<int>>{{8, 9, 10, 11}}));
}

TEST(RankFold, GroupsOfEqualRanksAreThoseOfTheMesh) {
  const RankFold fold = stages();
  EXPECT_EQ(as_sets(fold.equal_groups({12, 13, 14, 15})),
            (std::set<std::set<int>>{{12, 13, 14, 15}, {16, 17, 18, 19}, {20, 21, 22, 23}}));
  EXPECT_EQ(as_sets(fold.equal_groups({0, 4, 8})),
            (std::set<std::set<int>>{{0, 4, 8}, {1, 5, 9}, {2, 6, 10}, {3, 7, 11}}));
  EXPECT_EQ(fold.equal_groups({0, 12}).size(), 12U) << "transfers between the stages";
  EXPECT_EQ(fold.equal_groups({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).size(), 1U);
}

TEST(RankFold, CopiesOfHeadsLieWithinTheTensorParallelGroup) {
  const RankFold fold = stages();
  EXPECT_EQ(as_sets(fold.equal_groups({0, 2})),
            (std::set<std::set<int>>{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}}));
  EXPECT_EQ(as_sets(fold.equal_groups({0, 1})),
            (std::set<std::set<int>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}));
}

TEST(RankFold, AGroupIsItsOwnFirstEqualAndEachRankIsInOneOfThem) {
  const RankFold fold = stages();
  for (const Group& group : {Group{4, 5, 6, 7}, Group{3, 7, 11}, Group{13, 15}}) {
    const auto equals = fold.equal_groups(group);
    EXPECT_EQ(equals.front(), group);
    std::multiset<int> members;
    for (const Group& each : equals) members.insert(each.begin(), each.end());
    EXPECT_EQ(members.size(), 12U);
    EXPECT_EQ(std::set<int>(members.begin(), members.end()).size(), 12U);
  }
}

TEST(RankFold, EqualGroupsNearSomeRanksAreThoseThatHaveOne) {
  const RankFold fold = stages();
  for (const Group& group :
       {Group{4, 5, 6, 7}, Group{3, 7, 11}, Group{13, 15}, Group{0, 12}, Group{5, 17}}) {
    for (const std::vector<int>& near : {std::vector<int>{}, {0, 1, 2}, {5, 9, 13, 14}, {23}}) {
      std::set<std::set<int>> expected{{group.begin(), group.end()}};
      for (const Group& each : fold.equal_groups(group)) {
        if (std::any_of(each.begin(), each.end(), [&](int rank) {
              return std::find(near.begin(), near.end(), rank) != near.end();
            }))
          expected.emplace(each.begin(), each.end());
      }
      for (const auto members : {RankFold::Members::kOneByOne, RankFold::Members::kAnyOrder}) {
        const auto found = fold.equal_groups(group, near, members);
        EXPECT_EQ(found.front(), group);
        EXPECT_EQ(found.size(), expected.size()) << "each once";
        EXPECT_EQ(as_sets(found), expected);
      }
    }
  }
}

TEST(RankFold, MembersOfCollectivesAreEqualInAnyOrderThoseOfTransfersOneByOne) {
  // Classes of ranks 0 and 2; every fourth rank forms a group: 0 4, 1 5, 2 6, 3 7.
  const RankFold fold = RankFold::with_classes({8}, {0, 0, 2, 2, 2, 2, 0, 0});
  const std::vector<int> everyone{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(as_sets(fold.equal_groups({0, 4}, everyone, RankFold::Members::kOneByOne)),
            (std::set<std::set<int>>{{0, 4}, {1, 5}}));
  EXPECT_EQ(as_sets(fold.equal_groups({0, 4}, everyone, RankFold::Members::kAnyOrder)),
            (std::set<std::set<int>>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_TRUE(fold.are_equal({0, 4}, {2, 6}, RankFold::Members::kAnyOrder));
  EXPECT_FALSE(fold.are_equal({0, 4}, {2, 6}, RankFold::Members::kOneByOne));
  EXPECT_TRUE(fold.are_equal({0, 4}, {1, 5}, RankFold::Members::kOneByOne));
  EXPECT_FALSE(fold.are_equal({0, 4}, {2, 7}, RankFold::Members::kAnyOrder)) << "lies otherwise";
  EXPECT_FALSE(fold.are_equal({0, 1}, {2, 3}, RankFold::Members::kAnyOrder)) << "other classes";
  EXPECT_FALSE(RankFold().are_equal({0, 4}, {2, 6}, RankFold::Members::kAnyOrder));
}

TEST(RankFold, TransfersBetweenInnerStagesKeepTheirDirection) {
  const RankFold fold = RankFold::along_axes({2, 4}, {true, false});  // DP 2 × PP 4
  EXPECT_EQ(fold.equal_groups({4, 2}), (std::vector<Group>{{4, 2}, {5, 3}}));
  EXPECT_EQ(fold.equal_groups({2, 4}), (std::vector<Group>{{2, 4}, {3, 5}}));
  EXPECT_EQ(fold.equal_groups({0, 6}), (std::vector<Group>{{0, 6}, {1, 7}}));
}

TEST(RankFold, WhatIsNoPartitionIsRefused) {
  const auto fold = [](const std::vector<int>& mesh, const std::vector<int>& equal_to) {
    return RankFold::with_classes(mesh, equal_to);
  };
  EXPECT_THROW(fold({3}, {0, 2, 0}), ConfigError);  // a rank above itself
  EXPECT_THROW(fold({3}, {0, 0, 1}), ConfigError);  // 1 is not the lowest of its class
  EXPECT_THROW(fold({2}, {0, -1}), ConfigError);
  EXPECT_THROW(fold({2, 2}, {0, 0}), ConfigError);
  EXPECT_THROW(RankFold::along_axes({2, 0}, {true, true}), ConfigError);
}

}  // namespace
}  // namespace trellis::sim
