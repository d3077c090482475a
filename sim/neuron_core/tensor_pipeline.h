#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "sim/config/system_config.h"
#include "sim/isa/program.h"

namespace trellis::sim {

/// When the systolic array works. Plain arithmetic on absolute picoseconds.
///
///   queue   LS0      MM0             LS1     MM1
///   shadow  |==LS0==|        |==LS1==|         the next matmul's weights load
///   array            |=====MM0=======|=====MM1=====|   while the array streams
///
/// An instruction reaches the array `fill_time` after it was issued.
///
/// The clock of chips whose traces were read has two states, `ramp_start` of the full rate and all
/// of it, that change only where windows of `clock_window` meet: to the high one when the array did
/// at least `clock_up` of a window's full work, to the low one below `clock_down`. Where the grid
/// lies when a program starts is not known. In a device loop the last window that ends before the
/// next iteration does is cut where this one ends, so that iterations are alike and can be skipped:
///
///   |==window==|==window==|=rest=|==window==|==window==|=rest=|      a long iteration
///   |it|it|it| |it|it|it| |it|it|it|                                 short ones: whole numbers
///
/// A cut window decides by what its part of the thresholds asks; less than half of one, nothing.
///
/// On chips whose activity is limited the array may work for `activity_limit` of the time. A pause
/// earns what lets it work without a limit, `activity_burst` at most.
///
/// On other chips with a dI/dt limiter the array starts a busy phase at `ramp_start` of its rate
/// and reaches the full rate `ramp_time` later. When it has paused and was busy for less than half
/// of the last `ramp_time`, the ramp starts over (Neuron Explorer glossary).
class TensorPipeline {
 public:
  struct Slot {
    std::int64_t begin = 0;  ///< of the array's visible work
    std::int64_t end = 0;
    std::int64_t next_issue = 0;  ///< when the sequencer may look at the next instruction
  };

  void configure(const TensorEngineConfig& config);
  /// `grid`: where a window of the clock ends, relative to `now`.
  void reset(std::int64_t now, std::int64_t grid = 0);
  /// The visible part is what the running matmul does not hide; it may be empty.
  Slot load(std::int64_t issue, std::int64_t duration);
  /// `overhead`: the part of the duration that the low clock hides.
  Slot stream(std::int64_t issue, std::int64_t duration, std::int64_t overhead = 0);
  /// A loop starts or starts over, at `level`, when the sequencer is at `now`.
  void loop_opened(int level, std::int64_t now);
  void loop_closed(int level, std::int64_t now);
  /// All that decides about what it does from `now` on, relative to `now`.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const;

 private:
  struct Interval {
    std::int64_t begin, end;
  };

  std::int64_t ramped_end(std::int64_t begin, std::int64_t work);
  std::int64_t limited_end(std::int64_t begin, std::int64_t duration);
  std::int64_t clocked_end(std::int64_t begin, std::int64_t duration, std::int64_t overhead);
  /// Sets the clock's state for windows up to the one that holds `time`, where no work is left.
  void pass_windows(std::int64_t time);
  void end_window(double part);
  void note_busy(std::int64_t begin, std::int64_t end);
  /// Forgets what lies before the window of `ramp_time` that ends at `now`. REQUIRES: no work after
  /// `now`.
  std::int64_t busy_before(std::int64_t now);

  std::int64_t ramp_time_ = 0;
  double ramp_start_ = 1;
  double limit_ = 1;              ///< share of the time at work
  std::int64_t most_credit_ = 0;  ///< work above the limit that a pause earns at most
  std::int64_t credit_ = 0;       ///< at array_free_
  std::int64_t fill_ = 0;
  std::int64_t window_ = 0;      ///< 0: the ramp
  double up_ = 0, down_ = 0;     ///< in full work of a window
  std::int64_t window_end_ = 0;  ///< of the current one
  double window_work_ = 0;       ///< full work done in it
  bool high_ = false;
  std::array<std::int64_t, isa::kMaxLoopDepth> iteration_{};  ///< its start, by loop level
  std::int64_t array_free_ = 0;
  std::int64_t shadow_ready_ = 0;  ///< the last weight load is complete
  std::int64_t phase_start_ = 0;
  std::deque<Interval> busy_;  ///< the array's work that the window may still hold, pauses between
  std::int64_t busy_sum_ = 0;  ///< of all of busy_
};

}  // namespace trellis::sim
