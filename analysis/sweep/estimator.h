#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "analysis/sweep/row.h"
#include "analysis/sweep/space.h"

namespace trellis::analysis {

/// Estimates the open rows: simulates the profiles that they share, two short runs each, at most
/// `jobs` at a time, then fills estimate_ps and raises bound_ps to the estimate's lower end. A row
/// whose profile cannot be simulated, or whose model is a mixture of experts, keeps its closed
/// bound. Returns how many simulations that took. Throws Error (kInterrupted) after a signal.
std::size_t estimate_rows(const SweepSpace& space, std::vector<SweepRow>& rows, std::size_t jobs,
                          const std::filesystem::path& scratch);

}  // namespace trellis::analysis
