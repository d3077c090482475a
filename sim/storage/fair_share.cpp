#include "sim/storage/fair_share.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "base/check.h"

namespace trellis::sim {
namespace {

/// Amounts times picoseconds: what is left of a flow stays exact.
using Work = __int128;
constexpr std::int64_t kSecond = 1'000'000'000'000;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t limit_of(std::int64_t limit) { return limit > 0 ? limit : kUnlimited; }

std::int64_t time_for(Work work, std::int64_t rate) {
  return static_cast<std::int64_t>((work + rate - 1) / rate);
}

class Sharing {
 public:
  Sharing(const std::vector<ShareFlow>& flows, const ShareLimits& limits)
      : flows_(flows), limits_(limits), left_(flows.size()), times_(flows.size()) {
    for (std::size_t i = 0; i < flows.size(); ++i) {
      left_[i] = static_cast<Work>(flows[i].amount) * kSecond;
      times_[i] = {flows[i].start, flows[i].start};
      if (flows[i].amount > 0) waiting_.push_back(i);
    }
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [&](std::size_t a, std::size_t b) { return flows[a].start < flows[b].start; });
  }

  std::vector<SharedTime> run() {
    while (!waiting_.empty() || !active_.empty()) {
      if (active_.empty()) now_ = flows_[waiting_.front()].start.value;
      begin();
      advance();
    }
    return std::move(times_);
  }

 private:
  void begin() {
    const auto first_later = std::find_if(waiting_.begin(), waiting_.end(), [&](std::size_t i) {
      return flows_[i].start.value > now_;
    });
    for (auto it = waiting_.begin(); it != first_later; ++it) {
      active_.push_back(*it);
      ++of_node_[flows_[*it].node];
    }
    waiting_.erase(waiting_.begin(), first_later);
  }

  /// The rate of a flow on each node when nothing but its own limit and its node's limit holds it.
  [[nodiscard]] std::int64_t rate_in_node(int count) const {
    const std::int64_t node = limit_of(limits_.node);
    return std::max<std::int64_t>(1, std::min(limit_of(limits_.flow), node / count));
  }

  /// The level that no flow's rate exceeds, so that all together stay within the common limit.
  [[nodiscard]] std::int64_t level() const {
    if (limits_.all <= 0) return kUnlimited;
    std::map<std::int64_t, std::int64_t> flows_at;  // rate in the node → flows, lowest first
    for (const auto& [node, count] : of_node_) {
      if (count > 0) flows_at[rate_in_node(count)] += count;
    }
    std::int64_t rest = limits_.all, flows = static_cast<std::int64_t>(active_.size());
    for (const auto& [rate, count] : flows_at) {
      const std::int64_t share = rest / flows;
      if (rate >= share) return std::max<std::int64_t>(1, share);
      rest -= rate * count;
      flows -= count;
    }
    return kUnlimited;
  }

  void advance() {
    const std::int64_t most = level();
    std::vector<std::int64_t> rates;
    std::int64_t step = waiting_.empty() ? kUnlimited : flows_[waiting_.front()].start.value - now_;
    for (const std::size_t i : active_) {
      rates.push_back(std::min(most, rate_in_node(of_node_.at(flows_[i].node))));
      step = std::min(step, time_for(left_[i], rates.back()));
    }
    std::vector<std::size_t> still;
    for (std::size_t k = 0; k < active_.size(); ++k) {
      const std::size_t i = active_[k];
      const Work mark = static_cast<Work>(flows_[i].mark) * kSecond, before = left_[i];
      left_[i] -= static_cast<Work>(rates[k]) * step;
      if (before > mark && left_[i] <= mark)
        times_[i].marked = Picoseconds(now_ + time_for(before - mark, rates[k]));
      if (left_[i] > 0) {
        still.push_back(i);
        continue;
      }
      times_[i].end = Picoseconds(now_ + step);
      --of_node_[flows_[i].node];
    }
    active_ = std::move(still);
    now_ += step;
  }

  const std::vector<ShareFlow>& flows_;
  const ShareLimits& limits_;
  std::vector<Work> left_;
  std::vector<SharedTime> times_;
  std::vector<std::size_t> waiting_, active_;  ///< by start; in the order of their begin
  std::map<int, int> of_node_;                 ///< active flows
  std::int64_t now_ = 0;
};

}  // namespace

std::vector<SharedTime> share_fairly(const std::vector<ShareFlow>& flows,
                                     const ShareLimits& limits) {
  TRELLIS_CHECK(limits.flow > 0 || limits.node > 0 || limits.all > 0, "a limit of the sharing");
  return Sharing(flows, limits).run();
}

}  // namespace trellis::sim
