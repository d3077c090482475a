// Balanced partitions against all partitions.
#include <algorithm>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "trainer/config/schedule/balance.h"

namespace trellis::trainer {
namespace {

std::int64_t slowest(const std::vector<std::int64_t>& costs) {
  return *std::max_element(costs.begin(), costs.end());
}

double squares(const std::vector<std::int64_t>& costs) {
  double sum = 0;
  for (const std::int64_t cost : costs)
    sum += static_cast<double>(cost) * static_cast<double>(cost);
  return sum;
}

void for_each_partition(int layers, int stages,
                        const std::function<void(const std::vector<LayerRange>&)>& visit,
                        std::vector<LayerRange> so_far = {}) {
  const int first = so_far.empty() ? 0 : so_far.back().end;
  const int left = stages - static_cast<int>(so_far.size());
  if (left == 1) {
    so_far.push_back({first, layers});
    return visit(so_far);
  }
  for (int end = first + 1; end <= layers - left + 1; ++end) {
    auto next = so_far;
    next.push_back({first, end});
    for_each_partition(layers, stages, visit, next);
  }
}

TEST(Balance, IsTheBestOfAllPartitions) {
  std::mt19937 random(11);
  std::uniform_int_distribution<std::int64_t> cost(1, 20);
  for (int round = 0; round < 200; ++round) {
    const int layers = std::uniform_int_distribution<int>(2, 9)(random),
              stages = std::uniform_int_distribution<int>(1, layers)(random);
    LayerCosts costs;
    for (int i = 0; i < layers; ++i) costs.layers.push_back(cost(random));
    costs.embedding = cost(random);
    costs.head = 3 * cost(random);
    const auto balance = balance_layers(costs, stages);
    ASSERT_EQ(balance.size(), static_cast<std::size_t>(stages));
    const auto best = stage_costs(costs, balance);
    for_each_partition(layers, stages, [&](const std::vector<LayerRange>& other) {
      const auto others = stage_costs(costs, other);
      ASSERT_LE(slowest(best), slowest(others));
      if (slowest(best) == slowest(others)) {
        ASSERT_LE(squares(best), squares(others));
      }
    });
  }
}

TEST(Balance, AHeavyHeadTakesLayersFromTheLastStage) {
  LayerCosts costs{std::vector<std::int64_t>(32, 10), 0, 40};
  const auto ranges = balance_layers(costs, 4);
  EXPECT_EQ(ranges.back().end - ranges.back().first, 5);
  EXPECT_EQ(stage_costs(costs, ranges), (std::vector<std::int64_t>{90, 90, 90, 90}));
}

TEST(Balance, MoreStagesThanLayersIsNamed) {
  EXPECT_THROW(static_cast<void>(balance_layers({{1, 1}, 0, 0}, 3)), ConfigError);
}

}  // namespace
}  // namespace trellis::trainer
