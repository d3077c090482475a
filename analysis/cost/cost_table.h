#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/cost/cost_report.h"

/// The cost of one run, or of the same on several instances, as a table, CSV and a page.
namespace trellis::analysis {

struct RefusedInstance {
  std::string instance;
  std::string reason;  ///< why the run is not possible there
};

struct CostComparison {
  std::vector<CostReport> runs;  ///< as the user named them
  std::vector<RefusedInstance> refused;
};

/// One line for each instance and way to pay, the cheapest first; then the instances on which the
/// run is not possible.
[[nodiscard]] std::string comparison_text(const CostComparison& comparison);
/// Schema trellis.costs/1.
[[nodiscard]] nlohmann::json to_json(const CostComparison& comparison);
/// One line for each run, case and way to pay.
[[nodiscard]] std::string cost_csv(const CostComparison& comparison);
/// One page that needs no network: where the time goes, what it costs.
[[nodiscard]] std::string cost_page(const CostComparison& comparison);

}  // namespace trellis::analysis
