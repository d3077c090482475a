#include "sim/neuron_core/semaphore.h"

#include <algorithm>

namespace trellis::sim {

void Semaphore::insert(std::int64_t time, std::int64_t value) {
  auto at = increments_.end();
  const auto begin = increments_.begin() + static_cast<std::ptrdiff_t>(first_);
  while (at != begin && (at - 1)->time > time) --at;
  increments_.insert(at, {time, value});
}

void Semaphore::post(std::int64_t time, std::int64_t value) {
  insert(time, value);
  if (waiter_ != nullptr) waiter_->posted();
}

std::int64_t Semaphore::ready_time(std::int64_t value) const {
  for (std::size_t i = first_; i < increments_.size(); ++i) {
    value -= increments_[i].value;
    if (value <= 0) return increments_[i].time;
  }
  return kNever;
}

void Semaphore::take(std::int64_t value) {
  waiter_ = nullptr;
  taken_ += value;
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
    increments_.erase(increments_.begin(),
                      increments_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
}

std::int64_t Semaphore::known_value() const {
  std::int64_t sum = 0;
  for (std::size_t i = first_; i < increments_.size(); ++i) sum += increments_[i].value;
  return sum;
}

Semaphore::Level Semaphore::level(std::int64_t now) const {
  Level level{0, taken_, kNever};
  for (std::size_t i = first_; i < increments_.size() && increments_[i].time <= now; ++i)
    level.visible += increments_[i].value;
  if (waiter_ != nullptr) level.missing = wanted_ - known_value();
  return level;
}

void Semaphore::append_future(std::vector<std::int64_t>& out, std::int64_t now) const {
  std::size_t i = increments_.size();
  while (i > first_ && increments_[i - 1].time > now) --i;
  out.push_back(static_cast<std::int64_t>(increments_.size() - i));
  for (; i < increments_.size(); ++i) {
    out.push_back(increments_[i].time - now);
    out.push_back(increments_[i].value);
  }
}

void Semaphore::raise(std::int64_t now, std::int64_t value) { insert(now, value); }

}  // namespace trellis::sim
