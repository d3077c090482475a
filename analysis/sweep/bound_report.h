#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/sweep/bounds.h"

namespace trellis::analysis {

/// Bounds of a step from arithmetic alone: nothing was simulated.
struct BoundReport {
  std::string name, instance;
  int nodes = 1;
  std::int64_t parameters = 0;
  StepBound step;
  std::int64_t bytes = 0, capacity_bytes = 0;  ///< at least, of the fullest rank; of a core
  double tokens_per_s = 0, mfu = 0;            ///< at most
  [[nodiscard]] bool fits() const { return bytes <= capacity_bytes; }
};

/// Bounds of bounds.h. Throws ConfigError of the configuration, the machine and the layout.
[[nodiscard]] BoundReport bound_report(const std::string& config_file,
                                       const std::vector<std::string>& overrides,
                                       const std::string& instance, int nodes,
                                       const std::vector<std::string>& hardware, bool calibrated);

/// Schema trellis.bounds/1.
[[nodiscard]] nlohmann::json bound_json(const BoundReport& report);
[[nodiscard]] std::string bound_text(const BoundReport& report);

}  // namespace trellis::analysis
