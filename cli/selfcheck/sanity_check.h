#pragma once

#include <functional>
#include <string>
#include <vector>

/// The physical sanity checks of `trellis selfcheck`: laws that any machine obeys, tried on the model as it is configured now.
namespace trellis::cli {

struct Finding {
  bool holds = false;
  std::string detail;  ///< the figures: what was compared, the worst case
};

struct SanityCheck {
  std::string id;
  std::string claim;
  std::function<Finding()> run;
};

/// Rings against their formula, bytes sent and received, sizes, algorithms and fabrics that must differ.
[[nodiscard]] std::vector<SanityCheck> collective_checks();
/// Peaks, equal layers, repeatability of kernels.
[[nodiscard]] std::vector<SanityCheck> core_checks();
/// What faster and slower hardware does to kernels and collectives.
[[nodiscard]] std::vector<SanityCheck> bandwidth_checks();

}  // namespace trellis::cli
