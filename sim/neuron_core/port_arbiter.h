#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "sim/neuron_core/ports.h"

namespace trellis::sim {

/// The shared paths of a core as servers: whoever asks first holds them first. REQUIRES: engines
/// ask in the order of time.
class PortArbiter {
 public:
  void reset(std::int64_t now) { free_.fill(now); }

  /// When all of `ports` are free, `time` at the earliest.
  [[nodiscard]] std::int64_t free_from(PortSet ports, std::int64_t time) const {
    for (; ports != 0; ports &= ports - 1)
      time = std::max(time, free_[static_cast<std::size_t>(std::countr_zero(ports))]);
    return time;
  }
  void hold(PortSet ports, std::int64_t until) {
    for (; ports != 0; ports &= ports - 1)
      free_[static_cast<std::size_t>(std::countr_zero(ports))] = until;
  }
  /// How long each path is held from `now` on.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
    for (const std::int64_t free : free_) out.push_back(std::max<std::int64_t>(free - now, 0));
  }

 private:
  std::array<std::int64_t, std::bit_width(kPsumVectorScalar)> free_{};
};

}  // namespace trellis::sim
