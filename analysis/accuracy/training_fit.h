#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/system_config.h"

/// The few numbers that are between a simulated step and a published one (`software.*` of the
/// machine's numbers).
namespace trellis::analysis {

/// A simulated step, with what a fit needs to know of it.
struct SimulatedRow {
  double seconds = 0;          ///< as `trellis simulate` says
  double programs_share = 1;   ///< of it that passes in programs of micro-batches: not in waits,
                               ///< launches or the optimizer
  double optimizer_share = 0;  ///< of it
  int nodes = 1;
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

/// The numbers with the least mean |log(expected / published)|, plus a tenth of the worst row, as
/// scripts/calibrate weighs them. Each stays in the plausible range of the hardware files. A number
/// that no row takes stays as it is, and so does multi_node_stretch, which is measured on rows that
/// judge nothing.
[[nodiscard]] sim::SoftwareConfig fit_software(const std::vector<FitRow>& rows,
                                               sim::SoftwareConfig start);

/// Errors (expected / published − 1) in the order of `rows`, each with numbers fitted to the rows
/// of other families only.
[[nodiscard]] std::vector<double> leave_one_family_out(const std::vector<FitRow>& rows);

}  // namespace trellis::analysis
