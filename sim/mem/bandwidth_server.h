#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/units.h"

namespace trellis::sim {

/// A resource that moves bytes at one rate, first come first served: contention as arithmetic
/// instead of polling.
class BandwidthServer {
 public:
  void configure(BytesPerSecond rate) {
    picoseconds_per_byte_ = kPicosecondsPerSecond / rate.value;
  }
  void reset(std::int64_t now) { free_ = now; }

  /// When `bytes` that ask at `now` are through.
  std::int64_t finish_time(std::int64_t now, std::int64_t bytes) {
    free_ = std::max(now, free_) + duration(bytes);
    return free_;
  }
  [[nodiscard]] std::int64_t duration(std::int64_t bytes) const {
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) * picoseconds_per_byte_));
  }
  [[nodiscard]] std::int64_t free_at() const { return free_; }

 private:
  double picoseconds_per_byte_ = 0;
  std::int64_t free_ = 0;
};

}  // namespace trellis::sim
