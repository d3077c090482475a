#include "sim/neuron_core/semaphore.h"

#include <algorithm>

#include "sim/kernel/time.h"

namespace trellis::sim {

void Semaphore::reset() {
  increments_.clear();
  first_ = 0;
  waiting = false;
}

void Semaphore::post(std::int64_t time, std::int64_t value) {
  auto at = increments_.end();
  const auto begin = increments_.begin() + static_cast<std::ptrdiff_t>(first_);
  while (at != begin && (at - 1)->time > time) --at;
  increments_.insert(at, {time, value});
  // Wakes the waiter when the increment counts; an earlier notification that is pending stays.
  if (waiting) posted.notify(duration_ps(time - now_ps()));
}

std::int64_t Semaphore::ready_time(std::int64_t value) const {
  for (std::size_t i = first_; i < increments_.size(); ++i) {
    value -= increments_[i].value;
    if (value <= 0) return increments_[i].time;
  }
  return kNever;
}

void Semaphore::take(std::int64_t value) {
  while (value > 0) {
    Increment& next = increments_[first_];
    const std::int64_t used = std::min(value, next.value);
    next.value -= used;
    value -= used;
    if (next.value == 0) ++first_;
  }
  if (first_ == increments_.size()) {
    increments_.clear();
    first_ = 0;
  } else if (first_ > 1024) {
    increments_.erase(increments_.begin(), increments_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
}

std::int64_t Semaphore::known_value() const {
  std::int64_t sum = 0;
  for (std::size_t i = first_; i < increments_.size(); ++i) sum += increments_[i].value;
  return sum;
}

}  // namespace trellis::sim
