#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "analysis/sweep/runner.h"

namespace trellis::analysis {

/// The space's size, counts by status, the best rows of each number of nodes with what bounds them,
/// and the Pareto front.
[[nodiscard]] std::string sweep_text(const SweepResult& result);
/// Schema trellis.sweep/1.
[[nodiscard]] nlohmann::json sweep_json(const SweepResult& result);
/// One line per candidate, in the order of the enumeration.
[[nodiscard]] std::string sweep_csv(const SweepResult& result);
/// Step time against peak memory of the simulated rows; the Pareto front drawn.
[[nodiscard]] std::string sweep_svg(const SweepResult& result);
}  // namespace trellis::analysis
