#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// When the systolic array works. Plain arithmetic on absolute picoseconds.
///
///   queue   LS0      MM0             LS1     MM1
///   shadow  |==LS0==|        |==LS1==|         the next matmul's weights load
///   array            |=====MM0=======|=====MM1=====|   while the array streams
///
/// On chips with a dI/dt limiter the array starts a busy phase at `ramp_start` of its rate and
/// reaches the full rate `ramp_time` later. When it has paused and was busy for less than half of
/// the last `ramp_time`, the ramp starts over (Neuron Explorer glossary).
class TensorPipeline {
 public:
  struct Slot {
    std::int64_t begin = 0;  ///< of the array's visible work
    std::int64_t end = 0;
    std::int64_t next_issue = 0;  ///< when the sequencer may look at the next instruction
  };

  void configure(const TensorEngineConfig& config);
  void reset(std::int64_t now);
  /// The visible part is what the running matmul does not hide; it may be empty.
  Slot load(std::int64_t issue, std::int64_t duration);
  Slot stream(std::int64_t issue, std::int64_t duration);
  /// All that decides about what it does from `now` on, relative to `now`.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const;

 private:
  struct Interval {
    std::int64_t begin, end;
  };

  std::int64_t ramped_end(std::int64_t begin, std::int64_t work);
  void note_busy(std::int64_t begin, std::int64_t end);
  /// Forgets what lies before the window of `ramp_time` that ends at `now`. REQUIRES: no work after
  /// `now`.
  std::int64_t busy_before(std::int64_t now);

  std::int64_t ramp_time_ = 0;
  double ramp_start_ = 1;
  std::int64_t array_free_ = 0;
  std::int64_t shadow_ready_ = 0;  ///< the last weight load is complete
  std::int64_t phase_start_ = 0;
  std::deque<Interval> busy_;  ///< the array's work that the window may still hold, pauses between
  std::int64_t busy_sum_ = 0;  ///< of all of busy_
};

}  // namespace trellis::sim
