// Who reads what when ranks load together.
#include "trainer/checkpoint/state/shared_load.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "runtime/links/process_link.h"
#include "runtime/ranks/world.h"

namespace trellis::checkpoint {
namespace {

bool needs_item(int rank, std::size_t item) {
  return (item + static_cast<std::size_t>(rank)) % 3 != 0;
}

constexpr std::size_t kItems = 23;
constexpr int kRanks = 4;

/// By item, the ranks that read it.
struct Readings {
  std::mutex mutex;
  std::map<std::size_t, std::vector<int>> of;
};

/// Items of different types; every fifth is in one of two files, which have them in reverse.
std::vector<LoadItem> some_items() {
  std::vector<LoadItem> items;
  for (std::size_t i = 0; i < kItems; ++i) {
    const TensorMeta meta{i % 2 == 0 ? DType::kFloat64 : DType::kUInt8, {1}};
    items.push_back({"item " + std::to_string(i), meta,
                     i % 5 == 0 ? "file " + std::to_string(i % 2) : std::string()});
  }
  return items;
}

/// A rank loads two thirds of the items.
void load_some(runtime::RankContext& rank, SharedLoad& shared, Readings& readings, Readers who) {
  LiveTensor into;
  into.values = at::full({kItems}, -1, at::kDouble);
  std::vector<LoadCopy> copies;
  for (std::size_t i = 0; i < kItems; ++i) {
    const Shape place{static_cast<std::int64_t>(i)};
    if (needs_item(rank.rank(), i)) copies.push_back({&into, {{{i, {{0}, {1}}, place}}, 1}});
  }
  const LoadSource source{
      .read =
          [&](std::size_t item, const at::Tensor& place) {
            const std::scoped_lock lock(readings.mutex);
            readings.of[item].push_back(rank.rank());
            const auto type = item % 2 == 0 ? at::kDouble : at::kByte;
            return (place.defined() ? place : at::empty({1}, type)).fill_(double(item));
          },
      .offset = [](std::size_t item) { return static_cast<std::int64_t>(kItems - item); }};
  shared.load(rank, copies, source, who);
  for (std::size_t i = 0; i < kItems; ++i) {
    const double got = into.values[static_cast<std::int64_t>(i)].item<double>();
    EXPECT_EQ(got, needs_item(rank.rank(), i) ? static_cast<double>(i) : -1);
  }
}

/// Which ranks read each of some items, of which each rank needs two thirds.
std::map<std::size_t, std::vector<int>> readers_of_items(Readers who, int processes = 1) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Readings readings;
  const auto run = [&](runtime::ProcessLink* link) {
    SharedLoad shared(some_items(), kRanks);
    runtime::WorldOptions world;
    world.world_size = kRanks;
    world.link = link;
    EXPECT_NO_THROW(runtime::run_ranks(
        world, [&](runtime::RankContext& rank) { load_some(rank, shared, readings, who); }));
  };
  if (processes == 1) {
    run(nullptr);
  } else {
    std::vector<std::thread> threads;
    for (int process = 0; process < processes; ++process) {
      threads.emplace_back([&, process] {
        runtime::ProcessLink link({"a test", process, processes, "127.0.0.1"}, store,
                                  std::chrono::seconds(20), {});
        run(&link);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(readings.of.size(), kItems);
  return readings.of;
}

TEST(SharedLoad, EachItemIsReadOnceInHoweverManyProcesses) {
  const auto expected = readers_of_items(Readers::kOne);
  for (const auto& [item, ranks] : expected) {
    EXPECT_EQ(ranks.size(), 1U) << item;
    EXPECT_TRUE(item % 5 == 0 || needs_item(ranks.front(), item)) << item;
  }
  EXPECT_EQ(expected.at(5), expected.at(15)) << "of one file";
  for (const int processes : {2, 4})
    EXPECT_EQ(readers_of_items(Readers::kOne, processes), expected);
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
