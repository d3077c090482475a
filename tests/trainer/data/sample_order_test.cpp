#include "trainer/files/data/samples/sample_order.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

namespace trellis::trainer {
namespace {

TEST(SplitMix64, EqualsThePublishedSequence) {
  // First outputs of Vigna's reference implementation for seed 1234567.
  SplitMix64 random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
}

TEST(EpochOrder, IsAPermutationForEverySize) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    auto order = epoch_order(count, 1, 0);
    std::ranges::sort(order);
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
    ASSERT_EQ(static_cast<std::int64_t>(order.size()), count);
  }
}

TEST(EpochOrder, IsAFunctionOfSeedAndEpoch) {
  EXPECT_EQ(epoch_order(100, 5, 3), epoch_order(100, 5, 3));
  EXPECT_NE(epoch_order(100, 5, 3), epoch_order(100, 6, 3));
  EXPECT_NE(epoch_order(100, 5, 3), epoch_order(100, 5, 4));
}

TEST(EpochOrder, ReachesEveryPermutationEvenly) {
  std::map<std::vector<std::int64_t>, int> seen;
  constexpr int kDraws = 12000;
  for (int seed = 0; seed < kDraws; ++seed)
    ++seen[epoch_order(4, static_cast<std::uint64_t>(seed), 0)];
  ASSERT_EQ(seen.size(), 24u);
  for (const auto& [order, count] : seen)
    EXPECT_NEAR(count, kDraws / 24, 6 * std::sqrt(kDraws / 24.0));
}

}  // namespace
}  // namespace trellis::trainer
