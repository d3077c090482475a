#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::analysis {

/// A number of the machine that, changed alone, leaves the least error.
struct ReplayConstant {
  std::string key, value, better;
  double explains = 0;  ///< share of the mean error that goes away
};

/// Tries every number of the machine that decides when an instruction runs, larger and smaller, and
/// returns the one that leaves the least of `mean_error`. `error_with`: the mean error with these
/// KEY=VALUE.
[[nodiscard]] ReplayConstant explaining_constant(
    const sim::SystemConfig& system, double mean_error,
    const std::function<double(const std::vector<std::string>&)>& error_with);

}  // namespace trellis::analysis
