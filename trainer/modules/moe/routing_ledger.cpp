#include "trainer/modules/moe/routing_ledger.h"

#include <algorithm>
#include <numeric>

namespace trellis::trainer {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

void add_to(std::vector<std::int64_t>& sums, const std::vector<std::int64_t>& counts) {
  sums.resize(std::max(sums.size(), counts.size()));
  for (std::size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i];
}

}  // namespace

std::int64_t LayerLoad::routed() const { return sum_of(kept); }

std::int64_t LayerLoad::dropped() const { return sum_of(assigned) - sum_of(kept); }

double LayerLoad::imbalance() const {
  const std::int64_t total = sum_of(assigned);
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(assigned.begin(), assigned.end())) *
         static_cast<double>(assigned.size()) / static_cast<double>(total);
}

void RoutingLedger::add(int layer, const LayerLoad& load) {
  const std::lock_guard lock(mutex_);
  add_to(layers_[layer].assigned, load.assigned);
  add_to(layers_[layer].kept, load.kept);
  add_to(layers_[layer].computed, load.computed);
}

RoutedTokens RoutingLedger::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(layers_, {});
}

}  // namespace trellis::trainer
