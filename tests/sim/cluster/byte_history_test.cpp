#include "sim/cluster/byte_history.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace trellis::sim {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& bins) {
  return std::accumulate(bins.begin(), bins.end(), std::int64_t{0});
}

TEST(ByteHistory, KeepsEveryByteHoweverLongTheRun) {
  std::mt19937 random(3);
  for (int run = 0; run < 40; ++run) {
    ByteHistory history;
    std::int64_t now = 0, bytes = 0;
    std::uniform_int_distribution<std::int64_t> gap(0, std::int64_t{1} << (10 + run)),
        size(0, 1 << 20);
    for (int i = 0; i < 200; ++i) {
      const std::int64_t start = now + gap(random), moved = size(random);
      now = start + gap(random);
      history.add(start, now, moved);
      bytes += moved;
    }
    const auto bins = history.in_bins_of(history.width());
    EXPECT_LE(bins.size(), ByteHistory::kBins);
    EXPECT_EQ(sum(bins), bytes);
    EXPECT_EQ(sum(history.in_bins_of(8 * history.width())), bytes);
    EXPECT_GT(history.width() * static_cast<std::int64_t>(ByteHistory::kBins), now);
  }
}

TEST(ByteHistory, PutsBytesWhereTheyMove) {
  ByteHistory history;
  const std::int64_t bin = history.width();
  history.add(bin / 2, 2 * bin + bin / 2, 200);  // half a bin, a bin, half a bin
  EXPECT_EQ(history.in_bins_of(bin), (std::vector<std::int64_t>{50, 100, 50}));
  history.add(3 * bin, 3 * bin, 7);  // at once
  EXPECT_EQ(history.in_bins_of(bin), (std::vector<std::int64_t>{50, 100, 50, 7}));
  EXPECT_EQ(history.in_bins_of(2 * bin), (std::vector<std::int64_t>{150, 57}));
}

}  // namespace
}  // namespace trellis::sim
