#include "trainer/files/data/megatron/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace trellis::trainer {
namespace {

std::vector<double> normalised(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const bool good =
      std::ranges::all_of(weights, [](double w) { return std::isfinite(w) && w >= 0; });
  if (!good || !(sum > 0))
    throw ConfigError(
        "data.data_prefix: the weights of a blend must be 0 or more, and one above 0; got a sum "
        "of " +
        std::to_string(sum));
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

}  // namespace

std::vector<std::int64_t> blend_requests(const std::vector<double>& weights,
                                         std::int64_t num_samples) {
  std::vector<std::int64_t> requests;
  for (const double share : normalised(weights))
    requests.push_back(
        static_cast<std::int64_t>(std::ceil(static_cast<double>(num_samples) * share * 1.005)));
  return requests;
}

BlendPlan plan_blend(const std::vector<double>& weights, std::int64_t num_samples) {
  const std::vector<double> shares = normalised(weights);
  TRELLIS_CHECK(shares.size() <= kMostBlendedDatasets, "checked where the paths are known");
  std::vector<std::int64_t> taken(shares.size());
  BlendPlan plan;
  for (std::int64_t i = 0; i < num_samples; ++i) {
    const double place = std::max(static_cast<double>(i), 1.0);
    std::size_t choice = 0;
    double largest = shares[0] * place - static_cast<double>(taken[0]);
    for (std::size_t d = 1; d < shares.size(); ++d) {
      const double deficit = shares[d] * place - static_cast<double>(taken[d]);
      if (deficit > largest) {
        largest = deficit;
        choice = d;
      }
    }
    plan.dataset.push_back(static_cast<std::uint8_t>(choice));
    plan.sample.push_back(taken[choice]++);
  }
  return plan;
}

BlendedDataset::BlendedDataset(std::vector<std::shared_ptr<const SampleSource>> datasets,
                               const std::vector<double>& weights, std::int64_t num_samples)
    : datasets_(std::move(datasets)), plan_(plan_blend(weights, num_samples)) {
  std::vector<std::int64_t> taken(datasets_.size());
  for (std::size_t i = 0; i < plan_.dataset.size(); ++i)
    taken[plan_.dataset[i]] = plan_.sample[i] + 1;
  for (std::size_t d = 0; d < datasets_.size(); ++d) {
    if (taken[d] <= datasets_[d]->num_samples()) continue;
    log_warning("data.data_prefix: data set " + std::to_string(d) + " of the blend has " +
                std::to_string(datasets_[d]->num_samples()) + " samples and gives " +
                std::to_string(taken[d]) + ": it starts again from its first");
  }
}

Sample BlendedDataset::item(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index < 0 ? num_samples() - 1 : index);
  const SampleSource& source = *datasets_[plan_.dataset.at(at)];
  Sample item = source.item(plan_.sample[at] % source.num_samples());
  if (index < 0) std::ranges::fill(item.loss_mask, 0.0F);
  return item;
}

std::int64_t BlendedDataset::num_tokens() const {
  std::int64_t tokens = 0;
  for (const auto& dataset : datasets_) tokens += dataset->num_tokens();
  return tokens;
}

}  // namespace trellis::trainer
