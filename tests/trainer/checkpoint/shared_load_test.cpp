// Who reads what when ranks load together.
#include "trainer/checkpoint/state/shared_load.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/world.h"

namespace trellis::checkpoint {
namespace {

bool needs_item(int rank, std::size_t item) {
  return (item + static_cast<std::size_t>(rank)) % 3 != 0;
}

/// Which ranks read each of some items, of which each rank needs two thirds.
std::map<std::size_t, std::vector<int>> readers_of_items(Readers who) {
  constexpr std::size_t kItems = 23;
  constexpr int kRanks = 4;
  std::vector<LoadItem> items;
  for (std::size_t i = 0; i < kItems; ++i)
    items.push_back({"item " + std::to_string(i), static_cast<std::int64_t>(8 * (i + 1))});
  SharedLoad shared(items, kRanks);
  std::mutex mutex;
  std::map<std::size_t, std::vector<int>> readers;
  runtime::WorldOptions world;
  world.world_size = kRanks;
  runtime::run_ranks(world, [&](runtime::RankContext& rank) {
    LiveTensor into;
    into.values = at::full({kItems}, -1, at::kDouble);
    std::vector<LoadCopy> copies;
    for (std::size_t i = 0; i < kItems; ++i) {
      const Shape place{static_cast<std::int64_t>(i)};
      if (needs_item(rank.rank(), i)) copies.push_back({&into, {{{i, {{0}, {1}}, place}}, 1}});
    }
    shared.load(
        rank, copies,
        [&](std::size_t item) {
          const std::scoped_lock lock(mutex);
          readers[item].push_back(rank.rank());
          return at::full({1}, static_cast<double>(item), at::kDouble);
        },
        who);
    for (std::size_t i = 0; i < kItems; ++i) {
      const double got = into.values[static_cast<std::int64_t>(i)].item<double>();
      EXPECT_EQ(got, needs_item(rank.rank(), i) ? static_cast<double>(i) : -1);
    }
  });
  EXPECT_EQ(readers.size(), kItems);
  return readers;
}

TEST(SharedLoad, EachItemIsReadOnceByARankThatNeedsIt) {
  for (const auto& [item, ranks] : readers_of_items(Readers::kOne)) {
    EXPECT_EQ(ranks.size(), 1U) << item;
    EXPECT_TRUE(needs_item(ranks.front(), item)) << item;
  }
}

TEST(SharedLoad, EachRankReadsWhatItNeedsWhenNoneReadsForOthers) {
  for (auto& [item, ranks] : readers_of_items(Readers::kEach)) {
    std::ranges::sort(ranks);
    std::vector<int> expected{0, 1, 2, 3};
    std::erase_if(expected, [&](int rank) { return !needs_item(rank, item); });
    EXPECT_EQ(ranks, expected) << item;
  }
}

}  // namespace
}  // namespace trellis::checkpoint
