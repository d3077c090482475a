#include "sim/neuron_core/tensor_pipeline.h"

#include <algorithm>
#include <cmath>

namespace trellis::sim {

void TensorPipeline::configure(const TensorEngineConfig& config) {
  ramp_time_ = config.ramp_start < 1 ? config.ramp_time.value : 0;
  ramp_start_ = config.ramp_start;
  limit_ = config.activity_limit;
  most_credit_ =
      static_cast<std::int64_t>((1 - limit_) * static_cast<double>(config.activity_burst.value));
  fill_ = config.fill_time.value;
  window_ = config.clock_window.value;
  up_ = config.clock_up * static_cast<double>(window_);
  down_ = config.clock_down * static_cast<double>(window_);
}

void TensorPipeline::reset(std::int64_t now, std::int64_t grid) {
  window_end_ = now + (window_ > 0 ? window_ + (grid % window_ - window_) % window_ : 0);
  window_work_ = 0;
  high_ = false;
  credit_ = most_credit_;
  iteration_.fill(now);
  array_free_ = now;
  shadow_ready_ = now;
  phase_start_ = now;
  busy_.clear();
  busy_sum_ = 0;
}

TensorPipeline::Slot TensorPipeline::load(std::int64_t issue, std::int64_t duration) {
  const std::int64_t begin = std::max(issue + fill_, shadow_ready_);
  if (window_ > 0) {
    pass_windows(begin);
    if (!high_) duration = static_cast<std::int64_t>(static_cast<double>(duration) / ramp_start_);
  }
  shadow_ready_ = begin + duration;
  const std::int64_t visible = std::min(shadow_ready_, std::max(begin, array_free_));
  return {visible, shadow_ready_, begin - fill_};
}

TensorPipeline::Slot TensorPipeline::stream(std::int64_t issue, std::int64_t duration,
                                            std::int64_t overhead) {
  const std::int64_t begin = std::max({issue + fill_, array_free_, shadow_ready_});
  if (window_ > 0) {
    array_free_ = clocked_end(begin, duration, overhead);
  } else if (limit_ < 1) {
    array_free_ = limited_end(begin, duration);
  } else {
    array_free_ = ramped_end(begin, duration);
    if (ramp_time_ > 0) note_busy(begin, array_free_);
  }
  return {begin, array_free_, begin - fill_};
}

std::int64_t TensorPipeline::limited_end(std::int64_t begin, std::int64_t duration) {
  const auto pause = static_cast<double>(begin - array_free_);
  const auto work = static_cast<double>(duration);
  const double credit =
      std::min(static_cast<double>(credit_) + limit_ * pause, static_cast<double>(most_credit_));
  const double unlimited = credit / (1 - limit_);
  if (work <= unlimited) {
    credit_ = static_cast<std::int64_t>(credit - (1 - limit_) * work);
    return begin + duration;
  }
  credit_ = 0;
  return begin + static_cast<std::int64_t>(std::ceil(unlimited + (work - unlimited) / limit_));
}

/// `part`: of a whole window, which it lasted.
void TensorPipeline::end_window(double part) {
  high_ = window_work_ >= up_ * part || (high_ && window_work_ >= down_ * part);
  window_work_ = 0;
}

void TensorPipeline::pass_windows(std::int64_t time) {
  while (window_end_ <= time) {
    end_window(1);
    const std::int64_t idle = (time - window_end_) / window_;
    if (idle > 0) high_ = high_ && down_ <= 0;
    window_end_ += (idle + 1) * window_;
  }
}

void TensorPipeline::loop_opened(int level, std::int64_t now) {
  iteration_[static_cast<std::size_t>(level)] = std::max(now, array_free_);
}

void TensorPipeline::loop_closed(int level, std::int64_t now) {
  if (window_ == 0) return;
  now = std::max(now, array_free_);
  std::int64_t& begin = iteration_[static_cast<std::size_t>(level)];
  const std::int64_t iteration = now - begin;
  begin = now;
  pass_windows(now);
  if (window_end_ - now >= iteration) return;  // the next iteration ends in this window too
  const std::int64_t lasted = window_ - (window_end_ - now);
  if (2 * lasted >= window_) end_window(static_cast<double>(lasted) / static_cast<double>(window_));
  window_work_ = 0;
  window_end_ = now + window_;
}

// Work goes on over the ends of windows, at the rate of each.
std::int64_t TensorPipeline::clocked_end(std::int64_t begin, std::int64_t duration,
                                         std::int64_t overhead) {
  pass_windows(begin);
  auto left = static_cast<double>(duration - overhead);
  double now = static_cast<double>(begin);
  bool always_high = high_;
  for (;;) {
    const double rate = high_ ? 1 : ramp_start_;
    const double room = (static_cast<double>(window_end_) - now) * rate;
    if (left <= room) {
      window_work_ += left;
      now += left / rate;
      break;
    }
    window_work_ += room;
    left -= room;
    now = static_cast<double>(window_end_);
    pass_windows(window_end_);
    always_high = always_high && high_;
  }
  const auto end = static_cast<std::int64_t>(std::ceil(now));
  return always_high ? end + overhead : std::max(end, begin + duration);
}

void TensorPipeline::note_busy(std::int64_t begin, std::int64_t end) {
  busy_sum_ += end - begin;
  if (!busy_.empty() && busy_.back().end == begin) {
    busy_.back().end = end;
  } else {
    busy_.push_back({begin, end});
  }
}

std::int64_t TensorPipeline::busy_before(std::int64_t now) {
  const std::int64_t from = now - ramp_time_;
  while (!busy_.empty() && busy_.front().end <= from) {
    busy_sum_ -= busy_.front().end - busy_.front().begin;
    busy_.pop_front();
  }
  if (!busy_.empty() && busy_.front().begin < from) {
    busy_sum_ -= from - busy_.front().begin;
    busy_.front().begin = from;
  }
  return busy_sum_;
}

void TensorPipeline::append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
  out.push_back(std::max(array_free_ - now, -std::max(ramp_time_, 2 * most_credit_)));
  out.push_back(credit_);
  out.push_back(std::max<std::int64_t>(shadow_ready_ - now, 0));
  out.push_back(std::max(phase_start_ - now, -ramp_time_));
  if (window_ > 0) {
    out.insert(out.end(), {std::max(window_end_ - now, -window_),
                           static_cast<std::int64_t>(window_work_), high_});
    for (const std::int64_t begin : iteration_) out.push_back(std::max(begin - now, -window_));
  }
  for (const Interval& interval : busy_) {
    if (interval.end <= now - ramp_time_) continue;
    out.push_back(std::max(interval.begin - now, -ramp_time_));
    out.push_back(interval.end - now);
  }
}

// The allowed rate is r(τ) = s + (1 − s)·τ/T in the ramp, 1 after it; the work done by τ is s·τ +
// (1 − s)·τ²/2T. Solve for the end.
std::int64_t TensorPipeline::ramped_end(std::int64_t begin, std::int64_t work) {
  if (ramp_time_ == 0) return begin + work;
  const bool paused = busy_.empty() || begin > array_free_;
  if (paused && busy_before(begin) < ramp_time_ / 2) phase_start_ = begin;
  const std::int64_t since = begin - phase_start_;
  if (since >= ramp_time_) return begin + work;
  const double t = static_cast<double>(ramp_time_);
  const double slope = (1 - ramp_start_) / (2 * t);
  const double done = ramp_start_ * static_cast<double>(since) +
                      slope * static_cast<double>(since) * static_cast<double>(since);
  const double target = done + static_cast<double>(work);
  const double in_ramp = (ramp_start_ + 1) / 2 * t;  // the work that the whole ramp allows
  if (target >= in_ramp)
    return phase_start_ + ramp_time_ + static_cast<std::int64_t>(std::ceil(target - in_ramp));
  const double tau =
      (std::sqrt(ramp_start_ * ramp_start_ + 4 * slope * target) - ramp_start_) / (2 * slope);
  return phase_start_ + static_cast<std::int64_t>(std::ceil(tau));
}

}  // namespace trellis::sim
