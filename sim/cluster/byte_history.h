#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trellis::sim {

/// Bytes over time in at most kBins equal bins, which double in width as time goes on.
class ByteHistory {
 public:
  static constexpr std::size_t kBins = 256;

  /// `bytes` that move evenly from `start` to `end`, picoseconds. REQUIRES: 0 ≤ start ≤ end.
  void add(std::int64_t start, std::int64_t end, std::int64_t bytes) {
    while (static_cast<std::size_t>(end / width_) >= kBins) double_width();
    const auto first = static_cast<std::size_t>(start / width_),
               last = static_cast<std::size_t>(end / width_);
    if (bins_.size() <= last) bins_.resize(last + 1);
    std::int64_t before = 0;
    for (std::size_t bin = first; bin <= last; ++bin) {
      const std::int64_t until = std::min(end, static_cast<std::int64_t>(bin + 1) * width_);
      const std::int64_t moved = end == start
                                     ? bytes
                                     : static_cast<std::int64_t>(static_cast<__int128>(bytes) *
                                                                 (until - start) / (end - start));
      bins_[bin] += moved - before;
      before = moved;
    }
  }

  [[nodiscard]] std::int64_t width() const { return width_; }
  /// The same in wider bins. REQUIRES: `width` is width() times a power of two.
  [[nodiscard]] std::vector<std::int64_t> in_bins_of(std::int64_t width) const {
    ByteHistory wider = *this;
    while (wider.width_ < width) wider.double_width();
    return wider.bins_;
  }

 private:
  void double_width() {
    for (std::size_t i = 0; i < bins_.size(); ++i) {
      const std::int64_t bytes = bins_[i];
      bins_[i] = 0;
      bins_[i / 2] += bytes;
    }
    bins_.resize((bins_.size() + 1) / 2);
    width_ *= 2;
  }

  std::int64_t width_ = 1'000'000;  ///< a microsecond
  std::vector<std::int64_t> bins_;
};

}  // namespace trellis::sim
