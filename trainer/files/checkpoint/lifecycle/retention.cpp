#include "trainer/files/checkpoint/lifecycle/retention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "trainer/files/checkpoint/lifecycle/checkpoint_name.h"

namespace trellis::checkpoint {
namespace {

/// Larger is better; not a number is as bad as none.
double score_of(std::optional<double> metric, const KeepRule& rule) {
  if (!metric || std::isnan(*metric)) return -std::numeric_limits<double>::infinity();
  return rule.mode_max ? *metric : -*metric;
}

/// Better ones first.
bool is_better(const KeptCheckpoint& a, const KeptCheckpoint& b, const KeepRule& rule) {
  return std::pair(score_of(a.metric, rule), a.sequence) >
         std::pair(score_of(b.metric, rule), b.sequence);
}

}  // namespace

bool KeptCheckpoint::is_last() const {
  return tag.ends_with(std::string(kLastSuffix) + kCheckpointSuffix);
}

bool is_worth_keeping(const std::vector<KeptCheckpoint>& kept, std::optional<double> metric,
                      const KeepRule& rule) {
  if (rule.save_top_k < 0) return true;
  const auto better = std::count_if(kept.begin(), kept.end(), [&](const KeptCheckpoint& other) {
    return other.is_own && !other.is_last() &&
           score_of(other.metric, rule) > score_of(metric, rule);
  });
  return better < rule.save_top_k;
}

std::vector<std::string> tags_to_remove(std::vector<KeptCheckpoint> kept, const KeepRule& rule) {
  std::erase_if(kept, [](const KeptCheckpoint& checkpoint) { return !checkpoint.is_own; });
  std::sort(kept.begin(), kept.end(), [&](const KeptCheckpoint& a, const KeptCheckpoint& b) {
    return is_better(a, b, rule);
  });
  std::int64_t newest_last = 0;
  for (const KeptCheckpoint& checkpoint : kept) {
    if (checkpoint.is_last()) newest_last = std::max(newest_last, checkpoint.sequence);
  }
  std::vector<std::string> tags;
  int better = 0;
  for (const KeptCheckpoint& checkpoint : kept) {
    const bool stays = checkpoint.is_last() ? checkpoint.sequence == newest_last
                                            : rule.save_top_k < 0 || better++ < rule.save_top_k;
    if (!stays) tags.push_back(checkpoint.tag);
  }
  std::reverse(tags.begin(), tags.end());
  return tags;
}

std::vector<std::string> tags_to_strip(const std::vector<KeptCheckpoint>& kept,
                                       const KeepRule& rule) {
  std::vector<KeptCheckpoint> newest;
  std::ranges::copy_if(kept, std::back_inserter(newest), [](const KeptCheckpoint& checkpoint) {
    return checkpoint.is_own && !checkpoint.is_last();
  });
  std::ranges::sort(newest, std::greater<>(), &KeptCheckpoint::sequence);
  std::vector<std::string> tags;
  for (std::size_t i = 0; i < newest.size(); ++i) {
    const bool stays = rule.with_states < 0 || i < static_cast<std::size_t>(rule.with_states);
    if (!stays && newest[i].has_states) tags.push_back(newest[i].tag);
  }
  return tags;
}

}  // namespace trellis::checkpoint
