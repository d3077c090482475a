#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"
#include "traces/report/step_view.h"

/// Steps that a device timed itself: `measured` of a run report, schema trellis.measured/1. Its
/// common parts with a simulated step are compared: time, phases, memory.
namespace trellis::analysis {

/// Adds `measured` and its rates to a report; null or without a step: nothing is added.
void add_measured(nlohmann::json& report, const nlohmann::json& measured);

/// Adds what is wrong with the document to `problems`.
void check_measured(const nlohmann::json& measured, const std::string& where, Problems& problems);

/// The step, its spread and where it went on each rank.
[[nodiscard]] std::string print_measured(const nlohmann::json& report);

/// A step of either kind.
struct TimedStep {
  bool simulated = true;
  std::int64_t ps = 0;
  std::int64_t rank = 0;          ///< whose phases they are
  std::vector<NamedTime> phases;  ///< add up to the step; empty: the report has none
  std::optional<std::int64_t> peak_bytes, capacity_bytes;  ///< of the fullest rank
};
/// `stage`: of the slowest rank of that pipeline stage, where the report has its phases; none: of
/// all. Throws ConfigError when the run was neither simulated nor timed.
[[nodiscard]] TimedStep timed_step(const nlohmann::json& report, const std::string& where,
                                   std::optional<std::int64_t> stage = std::nullopt);
/// The pipeline stage of the step's rank; none: the two runs have other numbers of stages.
[[nodiscard]] std::optional<std::int64_t> common_stage(const TimedStep& step,
                                                       const nlohmann::json& report,
                                                       const nlohmann::json& other);

/// "simulated", "measured".
[[nodiscard]] std::string kind_of(const TimedStep& step);

/// The names that a reader knows first, in the order of a step.
[[nodiscard]] std::vector<std::string> phases_in_order(const std::set<std::string>& there);

}  // namespace trellis::analysis
