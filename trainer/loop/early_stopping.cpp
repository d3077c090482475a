#include "trainer/loop/early_stopping.h"

#include <cmath>

#include "base/error.h"

namespace trellis::trainer {

EarlyStopping::EarlyStopping(const EarlyStoppingSection& section) : section_(section) {
  if (section.mode != "min" && section.mode != "max") {
    throw ConfigError("exp_manager.early_stopping_callback_params.mode: expected min or max, got " +
                      section.mode);
  }
}

std::optional<std::string> EarlyStopping::update(double value) {
  const std::string number = section_.monitor + " " + std::to_string(value);
  if (section_.check_finite && !std::isfinite(value)) return number + " is not finite";
  if (section_.stopping_threshold && better(value, *section_.stopping_threshold)) {
    return number + " reached the stopping threshold " +
           std::to_string(*section_.stopping_threshold);
  }
  if (section_.divergence_threshold && better(*section_.divergence_threshold, value)) {
    return number + " passed the divergence threshold " +
           std::to_string(*section_.divergence_threshold);
  }
  const double sign = section_.mode == "min" ? -1 : 1;
  if (!best_ || better(value, *best_ + sign * section_.min_delta)) {
    best_ = value;
    waited_ = 0;
    return std::nullopt;
  }
  if (++waited_ < section_.patience) return std::nullopt;
  return number + " did not improve on " + std::to_string(*best_) + " in " +
         std::to_string(waited_) + " checks";
}

}  // namespace trellis::trainer
