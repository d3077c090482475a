#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::analysis {

/// A number of the machine that is known to a range only.
struct UncertainConstant {
  sim::Parameter parameter;  ///< as the step is simulated with
  std::string least, most;   ///< the ends of its range, as `simulate --set KEY=` takes them
  std::string measurement;   ///< what narrows the range on one rented instance
};

/// "10 - 60 us" → "10 us", "60 us". None: one number, or no range.
[[nodiscard]] std::optional<std::pair<std::string, std::string>> ends_of_range(
    const std::string& range);

/// The machine's constants whose range has two ends, in the order of its file; those of a training
/// software only where the step has one.
[[nodiscard]] std::vector<UncertainConstant> uncertain_constants(const sim::SystemConfig& system);

/// The measurement that would determine a number of this key.
[[nodiscard]] std::string measurement_of(const std::string& key);

}  // namespace trellis::analysis
