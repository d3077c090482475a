#pragma once

#include <cstdint>
#include <string>

namespace trellis::trainer {

enum class TaskKind : std::uint8_t {
  kForwardPreprocess,    ///< receive the input activation
  kForwardStep,
  kForwardPostprocess,   ///< send the output activation
  kBackwardPreprocess,   ///< receive the output's gradient
  kBackwardStep,
  kBackwardPostprocess,  ///< send the input's gradient
  kReduceGrads,          ///< once, last
};

/// One thing a pipeline stage does.
struct Task {
  TaskKind kind = TaskKind::kReduceGrads;
  int microbatch = -1;  ///< −1 for kReduceGrads
  bool operator==(const Task&) const = default;
};

/// "ForwardStep(2)"
[[nodiscard]] std::string to_string(const Task& task);

}  // namespace trellis::trainer
