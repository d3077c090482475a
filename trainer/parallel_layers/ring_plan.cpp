#include "trainer/parallel_layers/ring_plan.h"

#include <algorithm>

namespace trellis::trainer {
namespace {

/// The furthest rank that reads a block, counted from its owner, if the sequence went on for ever.
std::int64_t reach(const SequenceShard& shard, std::optional<std::int64_t> window) {
  const std::int64_t all = shard.size - 1;
  if (!window) return all;
  // The first query at distance d lies (d − 1) · local + 1 after the last key.
  return *window < 2 ? 0 : std::min(all, (*window - 2) / shard.local_length() + 1);
}

/// To how many ranks a block travels.
std::int64_t hops(const SequenceShard& shard, std::optional<std::int64_t> window, int owner) {
  if (shard.balanced) return shard.size - 1;
  return std::min<std::int64_t>(reach(shard, window), shard.size - 1 - owner);
}

RingStep contiguous_step(const SequenceShard& shard, std::optional<std::int64_t> window,
                         int distance) {
  const std::int64_t local = shard.local_length();
  RingStep step;
  step.queries = step.keys = {0, local};
  step.causal = distance == 0;
  step.windowed = window && (distance + 1) * local - 1 >= *window;
  return step;
}

/// A rank has two chunks, an early and a late one. Both of its chunks read the early chunk of an
/// earlier rank; only its late chunk reads a later rank's chunks, both of them.
RingStep balanced_step(const SequenceShard& shard, int owner) {
  const std::int64_t local = shard.local_length(), half = local / 2;
  RingStep step;
  step.queries = step.keys = {0, local};
  step.causal = owner == shard.rank;
  if (owner < shard.rank) step.keys = {0, half};
  if (owner > shard.rank) step.queries = {half, half};
  return step;
}

}  // namespace

RingPlan plan_ring(const SequenceShard& shard, std::optional<std::int64_t> window) {
  RingPlan plan;
  plan.next = (shard.rank + 1) % shard.size;
  plan.previous = (shard.rank + shard.size - 1) % shard.size;
  const std::int64_t own_hops = hops(shard, window, shard.rank);
  plan.returned_from = static_cast<int>((shard.rank + own_hops) % shard.size);
  for (int i = 0; i < shard.size; ++i) {
    const int owner = (shard.rank + shard.size - i) % shard.size;
    if (i > hops(shard, window, owner)) break;
    RingStep step =
        shard.balanced ? balanced_step(shard, owner) : contiguous_step(shard, window, i);
    step.owner = owner;
    step.sends = i < hops(shard, window, owner);
    if (i > 0) plan.steps.back().receives = true;
    plan.steps.push_back(step);
  }
  return plan;
}

std::string to_string(const RingPlan& plan) {
  const auto text = [](const RowRange& rows) {
    return std::to_string(rows.first) + "–" + std::to_string(rows.end() - 1);
  };
  std::string lines;
  for (const RingStep& step : plan.steps) {
    lines += "block " + std::to_string(step.owner) + ": queries " + text(step.queries) +
             " read keys " + text(step.keys) + (step.causal ? ", causal" : "") +
             (step.windowed ? ", in a window" : "") + (step.sends ? "; sends" : "") +
             (step.receives ? "; receives" : "") + "\n";
  }
  return lines;
}

}  // namespace trellis::trainer
