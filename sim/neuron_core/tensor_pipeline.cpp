#include "sim/neuron_core/tensor_pipeline.h"

#include <algorithm>
#include <cmath>

namespace trellis::sim {

void TensorPipeline::configure(const TensorEngineConfig& config) {
  ramp_time_ = config.ramp_start < 1 ? config.ramp_time.value : 0;
  ramp_start_ = config.ramp_start;
}

void TensorPipeline::reset(std::int64_t now) {
  array_free_ = now;
  shadow_ready_ = now;
  phase_start_ = now;
}

TensorPipeline::Slot TensorPipeline::load(std::int64_t issue, std::int64_t duration) {
  const std::int64_t begin = std::max(issue, shadow_ready_);
  shadow_ready_ = begin + duration;
  const std::int64_t visible = std::min(shadow_ready_, std::max(begin, array_free_));
  return {visible, shadow_ready_, begin};
}

TensorPipeline::Slot TensorPipeline::stream(std::int64_t issue, std::int64_t duration) {
  const std::int64_t begin = std::max({issue, array_free_, shadow_ready_});
  array_free_ = ramped_end(begin, duration);
  return {begin, array_free_, begin};
}

// The allowed rate is r(τ) = s + (1 − s)·τ/T in the ramp, 1 after it; the work done by τ is s·τ + (1 − s)·τ²/2T. Solve for the end.
std::int64_t TensorPipeline::ramped_end(std::int64_t begin, std::int64_t work) {
  if (ramp_time_ == 0) return begin + work;
  // Documented: the ramp starts over when utilisation over one ramp_time falls under 50 %, so when more than half of it was idle.
  if (begin - array_free_ > ramp_time_ / 2) phase_start_ = begin;
  const std::int64_t since = begin - phase_start_;
  if (since >= ramp_time_) return begin + work;
  const double t = static_cast<double>(ramp_time_);
  const double slope = (1 - ramp_start_) / (2 * t);
  const double done = ramp_start_ * static_cast<double>(since) + slope * static_cast<double>(since) * static_cast<double>(since);
  const double target = done + static_cast<double>(work);
  const double in_ramp = (ramp_start_ + 1) / 2 * t;  // the work that the whole ramp allows
  if (target >= in_ramp) return phase_start_ + ramp_time_ + static_cast<std::int64_t>(std::ceil(target - in_ramp));
  const double tau = (std::sqrt(ramp_start_ * ramp_start_ + 4 * slope * target) - ramp_start_) / (2 * slope);
  return phase_start_ + static_cast<std::int64_t>(std::ceil(tau));
}

}  // namespace trellis::sim
