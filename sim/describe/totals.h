#pragma once

#include <string>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::sim {

/// A figure that follows from the parameters: of one chip, of one instance and of all nodes.
struct Total {
  std::string key;                             ///< "peak_bf16"
  std::string unit;                            ///< "PFLOPS", "" for counts
  double chip = 0, instance = 0, cluster = 0;  ///< NaN: the figure does not exist at this level
};

/// The figures that the instance tables of the documents print, in their order and units. Figures
/// that are not published are left out.
[[nodiscard]] std::vector<Total> totals(const SystemConfig& system);

/// One property of a logical core, in the unit that is named.
struct CoreFigure {
  std::string key;
  double value = 0;
  std::string unit;
};
[[nodiscard]] std::vector<CoreFigure> core_figures(const SystemConfig& system);

}  // namespace trellis::sim
