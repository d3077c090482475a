#pragma once

#include <vector>

#include "sim/collectives/stage.h"

namespace trellis::sim {

[[nodiscard]] int round_count(const PlanStage& stage);
/// Calls `sink` for every step, round by round from `first_round`.
void for_each_step(const PlanStage& stage, int first_round, const StepSink& sink);
/// kSteps: one entry per round; otherwise one for the stage, whose rounds are alike and follow each
/// other without a gap on any link.
[[nodiscard]] std::vector<StageTraffic> traffic(const PlanStage& stage);

[[nodiscard]] CommPlan expand(const PlanOutline& outline);

}  // namespace trellis::sim
