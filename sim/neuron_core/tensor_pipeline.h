#pragma once

#include <cstdint>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// When the systolic array works. Plain arithmetic on absolute picoseconds.
///
///   queue   LS0      MM0             LS1     MM1
///   shadow  |==LS0==|        |==LS1==|                  weights of the next matmul load while the array streams
///   array            |=====MM0=======|=====MM1=====|
///
/// On chips with a dI/dt limiter the array starts a busy phase at `ramp_start` of its rate and reaches the full rate after `ramp_time`
/// of continuous work; a pause of half that time starts the ramp again (utilisation under 50 % in a window, Neuron Explorer glossary).
class TensorPipeline {
 public:
  struct Slot {
    std::int64_t begin = 0;       ///< of the array's visible work
    std::int64_t end = 0;
    std::int64_t next_issue = 0;  ///< when the sequencer may look at the next instruction
  };

  void configure(const TensorEngineConfig& config);
  void reset(std::int64_t now);
  /// The visible part is what the running matmul does not hide; it may be empty.
  Slot load(std::int64_t issue, std::int64_t duration);
  Slot stream(std::int64_t issue, std::int64_t duration);

 private:
  std::int64_t ramped_end(std::int64_t begin, std::int64_t work);

  std::int64_t ramp_time_ = 0;
  double ramp_start_ = 1;
  std::int64_t array_free_ = 0;
  std::int64_t shadow_ready_ = 0;  ///< the last weight load is complete
  std::int64_t phase_start_ = 0;
};

}  // namespace trellis::sim
