#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"

/// The physical sanity checks of `trellis selfcheck`: laws that any machine obeys, tried on the
/// model as it is configured now.
namespace trellis::analysis {

inline constexpr std::int64_t kMiB = 1 << 20;
[[nodiscard]] inline double seconds(Picoseconds time) {
  return static_cast<double>(time.value) * 1e-12;
}

struct Finding {
  bool holds = false;
  std::string detail;  ///< the figures: what was compared, the worst case
};

struct SanityCheck {
  std::string id;
  std::string claim;
  std::function<Finding()> run;
};

/// Rings against their formula, bytes sent and received, sizes, algorithms and fabrics that must
/// differ.
[[nodiscard]] std::vector<SanityCheck> collective_checks();
/// Peaks, equal layers, repeatability of kernels.
[[nodiscard]] std::vector<SanityCheck> core_checks();
/// Checks the effect of faster and slower hardware on kernels and collectives.
[[nodiscard]] std::vector<SanityCheck> bandwidth_checks();
/// Operations on permuted, stepped and broadcast views against their roofline.
[[nodiscard]] std::vector<SanityCheck> view_checks();

}  // namespace trellis::analysis
