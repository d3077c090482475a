#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace trellis::sim {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// One semaphore of a core: plain C++. Producers post increments that become visible later; the
/// single waiter asks when the count will be reached and is notified of every post while it waits.
class Semaphore {
 public:
  class Waiter {
   public:
    virtual void posted() = 0;

   protected:
    ~Waiter() = default;
  };

  void reset() { *this = {}; }

  /// `time`: when the increment is visible.
  void post(std::int64_t time, std::int64_t value);

  /// Earliest time at which the known increments reach `value`; kNever when they do not.
  [[nodiscard]] std::int64_t ready_time(std::int64_t value) const;
  /// REQUIRES: ready_time(value) != kNever.
  void take(std::int64_t value);

  [[nodiscard]] std::int64_t known_value() const;

  /// The waiter waits for `value`: tell it about posts.
  void expect(Waiter& waiter, std::int64_t value) {
    waiter_ = &waiter;
    wanted_ = value;
  }

  // For the fast-forward of loops.
  struct Level {
    std::int64_t visible = 0;  ///< value
    std::int64_t taken = 0;    ///< since the reset
    std::int64_t missing = 0;  ///< known increments, future ones too, lack this much until the
                               ///< waiter can go on; kNever: no one waits
  };
  [[nodiscard]] Level level(std::int64_t now) const;
  /// The increments that become visible after `now`, relative to it.
  void append_future(std::vector<std::int64_t>& out, std::int64_t now) const;
  /// Adds visible value that does not let the waiter go on.
  void raise(std::int64_t now, std::int64_t value);

 private:
  struct Increment {
    std::int64_t time, value;
  };
  void insert(std::int64_t time, std::int64_t value);

  std::vector<Increment> increments_;  ///< sorted by time from `first_` on
  std::size_t first_ = 0;
  std::int64_t taken_ = 0;
  Waiter* waiter_ = nullptr;  ///< null: no one waits
  std::int64_t wanted_ = 0;
};

}  // namespace trellis::sim
