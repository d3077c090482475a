#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/torch_device/clock.h"

namespace trellis::device {

/// Measures one rank's training steps by the clock, and how much of a step each phase took. Used by
/// the rank's own thread.
class StepMeter {
 public:
  struct Step {
    double seconds = 0;
    /// By phase ("forward", "optimizer", …) and "other"; they add up to `seconds` where the host is
    /// not ahead of the device.
    std::map<std::string, double> phases;
  };
  static constexpr std::size_t kKept = 1000;  ///< steps; older ones are forgotten

  explicit StepMeter(c10::Device device) : clock_(device) {}

  void begin_step();
  /// Waits for the device.
  void end_step();
  /// A phase begins inside of those that have begun; time is of the innermost.
  void enter(std::string_view phase);
  void leave();

  [[nodiscard]] const std::deque<Step>& steps() const { return steps_; }
  [[nodiscard]] std::size_t num_steps() const { return num_steps_; }  ///< forgotten ones included
  [[nodiscard]] bool has_events() const { return clock_.has_events(); }

 private:
  /// `phase` is the innermost one from the mark on.
  struct Border {
    DeviceClock::Mark mark;
    std::size_t phase = 0;
  };
  std::size_t number_of(std::string_view phase);
  void note_border();

  DeviceClock clock_;
  std::chrono::steady_clock::time_point began_;
  bool in_step_ = false;
  std::vector<std::string> names_{"other"};
  std::vector<std::size_t> open_;  ///< phases, outermost first
  std::vector<Border> borders_;    ///< of the step
  std::deque<Step> steps_;
  std::size_t num_steps_ = 0;
};

/// The calling thread's phases ("phase=…" scopes of the trainer) go to `meter`, which outlives the
/// thread's work. Once more for the same thread: another meter.
void watch_phases(StepMeter& meter);

}  // namespace trellis::device
