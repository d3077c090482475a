#pragma once

#include <string>

#include "analysis/sweep/runner.h"

namespace trellis::analysis {

/// A sweep as one page that needs no network: step time against memory with the Pareto front, and a
/// table of the layouts that sorts by a click. All simulated ones are in it, and of the others the
/// first 2,000.
[[nodiscard]] std::string sweep_page(const SweepResult& result);

}  // namespace trellis::analysis
