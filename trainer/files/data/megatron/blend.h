#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/files/data/megatron/gpt_dataset.h"

namespace trellis::trainer {

/// Samples asked of each data set of a blend: ceil(n · w · 1.005), w normalised. Half a percent
/// more, because the shares are not exact.
[[nodiscard]] std::vector<std::int64_t> blend_requests(const std::vector<double>& weights,
                                                       std::int64_t num_samples);

/// Which data set each sample of a blend comes from.
struct BlendPlan {
  std::vector<std::uint8_t> dataset;
  std::vector<std::int64_t> sample;  ///< its number there
};
/// Sample i comes from the data set with the largest deficit w · max(i, 1) − taken; the first one
/// of equals.
[[nodiscard]] BlendPlan plan_blend(const std::vector<double>& weights, std::int64_t num_samples);

inline constexpr std::size_t kMostBlendedDatasets = 254;

/// Samples of several data sets by weight.
class BlendedDataset : public SampleSource {
 public:
  BlendedDataset(std::vector<std::shared_ptr<const SampleSource>> datasets,
                 const std::vector<double>& weights, std::int64_t num_samples);
  [[nodiscard]] std::int64_t num_samples() const override {
    return static_cast<std::int64_t>(plan_.dataset.size());
  }
  [[nodiscard]] Sample item(std::int64_t index) const override;
  [[nodiscard]] std::int64_t num_tokens() const override;

 private:
  std::vector<std::shared_ptr<const SampleSource>> datasets_;
  BlendPlan plan_;
};

}  // namespace trellis::trainer
