#pragma once

#include <cstdint>
#include <limits>
#include <systemc>
#include <vector>

namespace trellis::sim {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// One semaphore of a core. Producers run ahead of the kernel's clock and post increments that become visible later; the single waiter
/// asks when the count will be reached and, when that is not yet past, waits for that moment or for another post.
///
/// Why this is exact: a post made at kernel time g lies at g or later. When the kernel's clock reaches t, every increment that is
/// visible up to t is known, whoever made it.
class Semaphore {
 public:
  void reset();

  /// `time`: when the increment is visible. REQUIRES: not before the kernel's clock.
  void post(std::int64_t time, std::int64_t value);

  /// Earliest time at which the known increments reach `value`; kNever when they do not.
  [[nodiscard]] std::int64_t ready_time(std::int64_t value) const;
  /// REQUIRES: ready_time(value) != kNever.
  void take(std::int64_t value);

  [[nodiscard]] std::int64_t known_value() const;

  /// The waiter's event: notified for the time of every post while `waiting` is set.
  sc_core::sc_event posted;
  bool waiting = false;

 private:
  struct Increment {
    std::int64_t time, value;
  };
  std::vector<Increment> increments_;  ///< sorted by time from `first_` on
  std::size_t first_ = 0;
};

}  // namespace trellis::sim
