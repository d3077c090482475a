#include "sim/storage/fair_share.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace trellis::sim {
namespace {

using literals::operator""_ps;

constexpr std::int64_t kSecond = 1'000'000'000'000;

Picoseconds seconds(std::int64_t s) { return Picoseconds(s * kSecond); }

TEST(FairShare, OneFlowTakesItsOwnLimit) {
  const auto times = share_fairly({{0, 1000, seconds(3)}}, {10, 100, 1000});
  EXPECT_EQ(times[0].end, seconds(103));
}

TEST(FairShare, FlowsOfANodeShareItAndOtherNodesDoNotCount) {
  const auto times = share_fairly({{0, 1000, {}}, {0, 1000, {}}, {1, 1000, {}}}, {100, 100, 0});
  EXPECT_EQ(times[0].end, seconds(20));
  EXPECT_EQ(times[1].end, seconds(20));
  EXPECT_EQ(times[2].end, seconds(10));
}

TEST(FairShare, WhatOneLeavesTheOthersTake) {
  // 50 + 50 a second until the shorter one ends after 10 s; then 100 for the other's 500.
  const auto times = share_fairly({{0, 500, {}}, {0, 1000, {}}}, {0, 100, 0});
  EXPECT_EQ(times[0].end, seconds(10));
  EXPECT_EQ(times[1].end, seconds(15));
}

TEST(FairShare, ANodeThatCannotTakeItsShareLeavesItToTheOthers) {
  // Node 0 has four flows of at most 5; of the 100 for all the flow of node 1 takes 20.
  std::vector<ShareFlow> flows(4, {0, 100, {}});
  flows.push_back({1, 400, {}});
  const auto times = share_fairly(flows, {20, 20, 100});
  EXPECT_EQ(times[0].end, seconds(20));
  EXPECT_EQ(times[4].end, seconds(20));
  // With 30 for all: everyone at most 5, so the flow of node 1 gets 10.
  const auto tight = share_fairly(flows, {20, 20, 30});
  EXPECT_EQ(tight[0].end, seconds(20));
  EXPECT_EQ(tight[4].end, seconds(30)) << "10 a second for 20 s, then its own limit of 20";
}

TEST(FairShare, LaterFlowsTakeTheirPart) {
  const auto times = share_fairly({{0, 1000, {}}, {0, 200, seconds(4)}}, {0, 100, 0});
  // 400 alone, then 50 a second each; the second ends 4 s later, the first has 400 left.
  EXPECT_EQ(times[1].end, seconds(8));
  EXPECT_EQ(times[0].end, seconds(12));
}

TEST(FairShare, MarksAreExact) {
  const auto times = share_fairly({{0, 1000, {}, 250}, {0, 250, {}}}, {0, 100, 0});
  EXPECT_EQ(times[1].end, seconds(5));
  EXPECT_EQ(times[0].marked, seconds(10)) << "250 at 50, then 500 at 100";
  EXPECT_EQ(times[0].end, Picoseconds(12 * kSecond + kSecond / 2));
}

TEST(FairShare, NothingTakesNoTime) {
  const auto times = share_fairly({{0, 0, 7_ps}}, {1, 0, 0});
  EXPECT_EQ(times[0].end, 7_ps);
}

/// No limit is exceeded, work is never lost, and a limit is always in use: the last end lies
/// between the bounds that the limits give and is what they give where only one of them holds.
TEST(FairShare, RandomFlowsKeepToTheLimits) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const int nodes = pick(1, 4), count = pick(1, 24);
    const ShareLimits limits{pick(1, 50) * 1000, pick(1, 200) * 1000,
                             pick(0, 1) == 0 ? 0 : pick(1, 400) * 1000};
    std::vector<ShareFlow> flows;
    std::vector<std::int64_t> of_node(static_cast<std::size_t>(nodes), 0);
    std::int64_t all = 0, largest = 0;
    for (int i = 0; i < count; ++i) {
      const std::int64_t amount = pick(0, 1'000'000);
      const int node = pick(0, nodes - 1);
      flows.push_back({node, amount, {}});
      of_node[static_cast<std::size_t>(node)] += amount;
      all += amount;
      largest = std::max(largest, amount);
    }
    const auto times = share_fairly(flows, limits);
    double last = 0;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      const double end = to_seconds(times[i].end);
      last = std::max(last, end);
      EXPECT_GE(end * (1 + 1e-9),
                static_cast<double>(flows[i].amount) / static_cast<double>(limits.flow));
      for (std::size_t k = 0; k < flows.size(); ++k) {
        if (flows[k].node == flows[i].node && flows[k].amount <= flows[i].amount) {
          EXPECT_LE(times[k].end, times[i].end) << "who has less ends no later";
        }
      }
    }
    const double node_bound =
        static_cast<double>(*std::max_element(of_node.begin(), of_node.end())) /
        static_cast<double>(limits.node);
    const double all_bound =
        limits.all == 0 ? 0 : static_cast<double>(all) / static_cast<double>(limits.all);
    const double flow_bound = static_cast<double>(largest) / static_cast<double>(limits.flow);
    EXPECT_GE(last * (1 + 1e-9), std::max({node_bound, all_bound, flow_bound}));
    EXPECT_LE(last, (node_bound + all_bound + flow_bound) * (1 + 1e-3));
    EXPECT_EQ(share_fairly(flows, limits), times) << "deterministic";
  }
}

}  // namespace
}  // namespace trellis::sim
