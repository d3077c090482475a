#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/schedule/replay_plan.h"

namespace trellis::trainer {

/// Functions that repeat passes instead of executing them: of the device, and of code that counts
/// micro-batches.
struct Replay {
  std::function<void()> mark;  ///< a period of the schedule ends here
  /// Repeats what was done between the last two marks, `times` times. `kept`: tensors that were
  /// made in the last period and are still alive, one of each period; returns their counterparts,
  /// period by period. Throws PassesDiffer.
  std::function<std::vector<at::Tensor>(std::int64_t times, const std::vector<at::Tensor>& kept)>
      repeat;
  std::function<void(int microbatches)> skipped;  ///< as many micro-batches were not executed
};

/// The schedule's periods are not alike on this rank: the passes must be executed.
class PassesDiffer final : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override {
    return "the periods of the schedule differ, so they cannot be repeated: all passes must be "
           "executed (--no-replay)";
  }
};

}  // namespace trellis::trainer
