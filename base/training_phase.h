#pragma once

#include <cstdint>
#include <string_view>

namespace trellis {

/// The part of a training step that a scope, a graph or a program belongs to. Scopes carry it as
/// the text "phase=<name>"; anything else, such as "eval" or a user's own text, is kOther.
enum class TrainingPhase : std::uint8_t { kOther, kForward, kBackward, kOptimizer };

inline constexpr std::string_view kForwardPhase = "forward", kBackwardPhase = "backward",
                                  kOptimizerPhase = "optimizer";

[[nodiscard]] constexpr TrainingPhase training_phase(std::string_view name) {
  if (name == kForwardPhase) return TrainingPhase::kForward;
  if (name == kBackwardPhase) return TrainingPhase::kBackward;
  if (name == kOptimizerPhase) return TrainingPhase::kOptimizer;
  return TrainingPhase::kOther;
}

}  // namespace trellis
