#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/storage/checkpoint_plan.h"
#include "sim/storage/save_time.h"

/// Costs of saving and of starting again in simulated time: the part "checkpoints" of a run's
/// report.
namespace trellis::analysis {

/// `step_time_ps`: of a step without a save. REQUIRES: plan.every_n_steps > 0.
[[nodiscard]] nlohmann::json checkpoint_report(const sim::CheckpointPlan& plan,
                                               const sim::StorageMachine& machine,
                                               std::int64_t step_time_ps);

/// Lines for people of what checkpoint_report gave.
[[nodiscard]] std::string print_checkpoints(const nlohmann::json& checkpoints);

/// Seconds of a report's part: what training waits for at a save, and what a restart with compiled
/// programs takes until the first step. Throws ConfigError for a part that is damaged.
struct CheckpointCost {
  double wait_s = 0, restart_s = 0;
  std::int64_t every_n_steps = 0, bytes = 0;
};
[[nodiscard]] CheckpointCost checkpoint_cost(const nlohmann::json& checkpoints);

}  // namespace trellis::analysis
