#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/neuron_core/semaphore.h"

namespace trellis::sim {

/// Decides which engine acts next. Engines act in the order of their next times, ties by number;
/// the one whose turn it is goes on alone up to `limit`.
///
///   engine 0   ──●────●───▷ next 40   engine 1's turn: it may act up to 39 (engine 0 wins a tie),
///   engine 1   ──●─▷ next 20          less when it wakes another engine for an earlier time
class Turn {
 public:
  static constexpr int kNone = -1;

  /// An engine, woken by a semaphore or by its peer, acts next at `time`.
  void expect(int engine, std::int64_t time) {
    if (time == kNever) return;
    if (running_ == kNone) {
      wake(time);
    } else if (engine != running_) {
      limit_ = std::min(limit_, time - static_cast<std::int64_t>(engine < running_));
    }
  }
  /// Something outside the engines, a DMA, may act from `time` on.
  void hold_at(std::int64_t time) {
    horizon_ = std::min(horizon_, time);
    limit_ = std::min(limit_, time);
  }
  [[nodiscard]] std::int64_t limit() const { return limit_; }

 protected:
  ~Turn() = default;
  /// No one's turn: an engine's next time is `time` now.
  virtual void wake(std::int64_t time) = 0;

  int running_ = kNone;
  std::int64_t limit_ = kNever - 1;    ///< the running engine may act up to here
  std::int64_t horizon_ = kNever - 1;  ///< no engine may act beyond
};

}  // namespace trellis::sim
