#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "analysis/schedule/schedule_plan.h"

/// A schedule for people: text, SVG and JSON (schema trellis.schedule/1).
namespace trellis::analysis {

/// A better partition than the plan's own; `moved` is false when there is none.
struct BalancedPlan {
  SchedulePlan plan;
  trainer::ScheduleTiming timing;
  bool moved = false;
};
/// Layers moved between stages so that the slowest gets faster; the plan itself when the step would
/// not be shorter. Throws ConfigError when the plan knows no model.
[[nodiscard]] BalancedPlan balanced(const SchedulePlan& plan,
                                    const trainer::ScheduleTiming& timing);
/// The partition as NxDT's `model.pipeline_cuts`: "[model.layers.18, model.layers.39]".
[[nodiscard]] std::string pipeline_cuts(const SchedulePlan& plan);

/// One line per pipeline rank, `width` columns of time: "3>>" forward of micro-batch 3, "3<<<<" its
/// backward, "." idle. With virtual stages a letter says which: "3a>>". A pass that is narrower
/// than its label shows only > or <. Only the beginning and the end of many micro-batches are
/// drawn.
[[nodiscard]] std::string timeline_text(const trainer::ScheduleTiming& timing, int width);
[[nodiscard]] std::string schedule_text(const SchedulePlan& plan,
                                        const trainer::ScheduleTiming& timing, int width);
[[nodiscard]] std::string balance_text(const SchedulePlan& plan,
                                       const trainer::ScheduleTiming& timing,
                                       const BalancedPlan& better);
[[nodiscard]] std::string schedule_svg(const SchedulePlan& plan,
                                       const trainer::ScheduleTiming& timing);
[[nodiscard]] nlohmann::json schedule_json(const SchedulePlan& plan,
                                           const trainer::ScheduleTiming& timing);

}  // namespace trellis::analysis
