#pragma once

#include <string>
#include <vector>

#include "sim/config/system_config.h"

/// The number between a simulated step and a published one that is fitted to steps: megatron_step
/// of `software.*`.
namespace trellis::analysis {

/// A simulated step, with what a fit needs to know of it.
struct SimulatedRow {
  double seconds = 0;            ///< as `trellis simulate` says
  sim::SoftwareConfig software;  ///< that it was simulated with
};

/// The seconds of the step by other numbers than those of the simulation; the row's software stack
/// stays.
[[nodiscard]] double expected_seconds(const SimulatedRow& step, const sim::SoftwareConfig& numbers);

struct FitRow {
  SimulatedRow step;
  double published_s = 0;
  std::string family;
};

/// `start` with the megatron_step of the least mean |log(expected / published)|, plus a tenth of
/// the worst row, as scripts/calibrate weighs them; in the plausible range of the hardware files.
/// It stays as it is where no row takes it; the other numbers always do: they are measured.
[[nodiscard]] sim::SoftwareConfig fit_software(const std::vector<FitRow>& rows,
                                               sim::SoftwareConfig start);

/// Errors (expected / published − 1) in the order of `rows`, each with the number fitted to the
/// rows of other families only.
[[nodiscard]] std::vector<double> leave_one_family_out(const std::vector<FitRow>& rows);

}  // namespace trellis::analysis
