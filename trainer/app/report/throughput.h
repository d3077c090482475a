#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace trellis::trainer {

/// NxDT's throughput: sequences per second over a moving window of steps, and the largest value so
/// far. The first step's time includes what was prepared before it, as NxDT counts it.
class Throughput {
 public:
  explicit Throughput(std::size_t window = 10) : window_(window) {}

  /// Adds a step of `sequences` that took `seconds`.
  void add(double sequences, double seconds) {
    steps_.push_back({sequences, seconds});
    if (steps_.size() > window_) steps_.pop_front();
    peak_ = std::max(peak_, sequences_per_s());
  }
  [[nodiscard]] double sequences_per_s() const {
    Step total;
    for (const Step& step : steps_)
      total = {total.sequences + step.sequences, total.seconds + step.seconds};
    return total.seconds > 0 ? total.sequences / total.seconds : 0;
  }
  [[nodiscard]] double peak() const { return peak_; }
  /// Mean time of a step in the window, in seconds.
  [[nodiscard]] double seconds_per_step() const {
    double seconds = 0;
    for (const Step& step : steps_) seconds += step.seconds;
    return steps_.empty() ? 0 : seconds / static_cast<double>(steps_.size());
  }

 private:
  struct Step {
    double sequences = 0, seconds = 0;
  };
  std::size_t window_;
  std::deque<Step> steps_;
  double peak_ = 0;
};

}  // namespace trellis::trainer
