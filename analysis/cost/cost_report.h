#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "analysis/cost/prices.h"
#include "analysis/cost/run_cost.h"
#include "traces/report/unused_cores.h"

/// Days, node-hours and money of a run: schema trellis.cost/1.
namespace trellis::analysis {

/// The plan for one assumption about the step time.
struct CostCase {
  std::string name;  ///< expected, fast, slow
  double step_s = 0;
  RunTime time;
};

struct CostReport {
  std::string source;       ///< the report or configuration
  std::string evidence;     ///< of the step time
  nlohmann::json validity;  ///< of the step time; null: its report says nothing about that
  std::string instance;
  int nodes = 1;
  std::optional<CoreUse> cores;  ///< of the machine; none: its report does not say
  std::int64_t steps = 0, tokens_per_step = 0;
  double step_s = 0;
  double mfu = 0;
  std::optional<double> checkpoint_bytes;
  RunPlanInputs inputs;
  std::vector<CostCase> cases;  ///< the expected one first
  PriceFile prices;
  std::vector<PricePlan> plans;  ///< of the instance
  std::vector<std::string> notes;
  [[nodiscard]] double node_hours(const CostCase& of) const {
    return of.time.total_s() / 3600 * nodes;
  }
  [[nodiscard]] double tokens() const {
    return static_cast<double>(steps) * static_cast<double>(tokens_per_step);
  }
  [[nodiscard]] double cost(const CostCase& of, const PricePlan& plan) const {
    return node_hours(of) * plan.per_hour;
  }
  /// The part of cost() for cores that run no rank; 0 also where nothing is known of them.
  [[nodiscard]] double cost_of_unused(const CostCase& of, const PricePlan& plan) const {
    return cores ? cost(of, plan) * cores->unused_share() : 0;
  }
};

[[nodiscard]] nlohmann::json to_json(const CostReport& report);
[[nodiscard]] std::string cost_text(const CostReport& report);
/// "1,235" or "12.35".
[[nodiscard]] std::string money_text(double amount);
/// The largest part of the time, and the largest of the rest.
[[nodiscard]] std::string dominating(const RunTime& time);

}  // namespace trellis::analysis
