#include "trainer/config/schedule/balance.h"

#include <algorithm>
#include <limits>

namespace trellis::trainer {
namespace {

/// The costs of every possible stage, by sums up to each layer.
class StageCosts {
 public:
  StageCosts(const LayerCosts& costs, int num_stages)
      : costs_(costs), num_stages_(num_stages), sums_{0} {
    for (const std::int64_t layer : costs.layers) sums_.push_back(sums_.back() + layer);
  }
  [[nodiscard]] std::int64_t of(int stage, int first, int end) const {
    std::int64_t cost =
        sums_[static_cast<std::size_t>(end)] - sums_[static_cast<std::size_t>(first)];
    if (stage == 0) cost += costs_.embedding;
    if (stage == num_stages_ - 1) cost += costs_.head;
    return cost;
  }

 private:
  const LayerCosts& costs_;
  int num_stages_;
  std::vector<std::int64_t> sums_;
};

using Table = std::vector<std::vector<double>>;

/// best[s][end]: the least objective of stages 0 … s over the layers before `end`; cut[s][end]:
/// where stage s begins then.
template <typename Join>
std::vector<std::vector<int>> solve(int layers, int stages, Table& best, const Join& join) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto l = static_cast<std::size_t>(layers), s = static_cast<std::size_t>(stages);
  best.assign(s, std::vector<double>(l + 1, kNever));
  std::vector<std::vector<int>> cut(s, std::vector<int>(l + 1, 0));
  for (int end = 1; end <= layers; ++end)
    best[0][static_cast<std::size_t>(end)] = join(0.0, 0, 0, end);
  for (std::size_t stage = 1; stage < s; ++stage) {
    for (std::size_t end = stage + 1; end <= l; ++end) {
      for (std::size_t first = stage; first < end; ++first) {
        const double value = best[stage - 1][first] == kNever
                                 ? kNever
                                 : join(best[stage - 1][first], static_cast<int>(stage),
                                        static_cast<int>(first), static_cast<int>(end));
        if (value >= best[stage][end]) continue;
        best[stage][end] = value;
        cut[stage][end] = static_cast<int>(first);
      }
    }
  }
  return cut;
}

}  // namespace

std::vector<std::int64_t> stage_costs(const LayerCosts& costs,
                                      const std::vector<LayerRange>& ranges) {
  const int count = static_cast<int>(ranges.size());
  const StageCosts stages(costs, count);
  std::vector<std::int64_t> list;
  for (int stage = 0; stage < count; ++stage) {
    const LayerRange& range = ranges[static_cast<std::size_t>(stage)];
    list.push_back(stages.of(stage, range.first, range.end));
  }
  return list;
}

std::vector<LayerRange> balance_layers(const LayerCosts& costs, int num_stages) {
  const int layers = static_cast<int>(costs.layers.size());
  std::vector<LayerRange> ranges = partition_layers(layers, num_stages);  // refuses too many stages
  const StageCosts stages(costs, num_stages);
  Table best;
  static_cast<void>(
      solve(layers, num_stages, best, [&](double before, int stage, int first, int end) {
        return std::max(before, static_cast<double>(stages.of(stage, first, end)));
      }));
  const double slowest = best.back().back();
  const auto cut =
      solve(layers, num_stages, best, [&](double before, int stage, int first, int end) {
        const auto cost = static_cast<double>(stages.of(stage, first, end));
        return cost > slowest ? std::numeric_limits<double>::infinity() : before + cost * cost;
      });
  int end = layers;
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    const int first =
        stage == 0 ? 0 : cut[static_cast<std::size_t>(stage)][static_cast<std::size_t>(end)];
    ranges[static_cast<std::size_t>(stage)] = {first, end};
    end = first;
  }
  return ranges;
}

}  // namespace trellis::trainer
