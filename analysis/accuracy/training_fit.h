#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "sim/config/software_config.h"

/// The number between a simulated step and a published one that is fitted to steps:
/// `software.step_overhead` of kFittedStack.
namespace trellis::analysis {

inline constexpr const char* kFittedStack = "megatron";

/// A simulated step, with what a fit needs to know of it.
struct SimulatedRow {
  double seconds = 0;            ///< as `trellis simulate` says
  sim::SoftwareConfig software;  ///< that it was simulated with
};

/// The seconds of the step by another number than that of the simulation; those of other stacks
/// stay.
[[nodiscard]] double expected_seconds(const SimulatedRow& step, Picoseconds overhead);

struct FitRow {
  SimulatedRow step;
  double published_s = 0;
  std::string family;
};

/// The number of the least mean |log(expected / published)|, plus a tenth of the worst row, as
/// scripts/calibrate weighs them; in the plausible range of sim/configs/software. `start` where no
/// row takes it.
[[nodiscard]] Picoseconds fit_step_overhead(const std::vector<FitRow>& rows, Picoseconds start);

/// Errors (expected / published − 1) in the order of `rows`, each with the number fitted to the
/// rows of other families only.
[[nodiscard]] std::vector<double> leave_one_family_out(const std::vector<FitRow>& rows);

}  // namespace trellis::analysis
