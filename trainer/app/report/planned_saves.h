#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/config/storage_config.h"
#include "sim/config/system_config.h"
#include "sim/storage/checkpoint_plan.h"
#include "trainer/app/prepare/load_device.h"
#include "trainer/checkpoint/training/planned_checkpoints.h"
#include "trainer/requests/run_request.h"

namespace trellis::trainer {

/// True if a simulated run is asked for the cost of its checkpoints.
[[nodiscard]] bool has_planned_saves(const RunRequest& request);

/// The checkpoints of a simulated run: which bytes go where, and what that takes.
class PlannedSaves {
 public:
  /// `overrides`: of storage and host, "storage.capacity=12 TiB". Throws ConfigError: no such
  /// storage, or nothing says how often.
  PlannedSaves(const RunRequest& request, const RunConfig& config, const DeviceChoice& device,
               const sim::StorageOverrides& overrides);

  [[nodiscard]] TrainingCheckpoints& recorder() { return recorder_; }
  /// The part "checkpoints" of the report; after the last step.
  [[nodiscard]] nlohmann::json report(std::int64_t step_time_ps) const;
  /// Adds a save that follows the step to the trace of the step. format: "perfetto" or "text".
  void add_to_trace(const std::filesystem::path& trace, const std::string& format,
                    std::int64_t step_time_ps) const;

 private:
  [[nodiscard]] sim::CheckpointPlan plan() const;

  checkpoint::PlannedCheckpoints recorder_;
  sim::CheckpointPlan settings_;  ///< without files
  sim::SystemConfig system_;
  sim::StorageConfig storage_;
  sim::HostCosts host_;
  std::vector<int> represented_by_;  ///< by rank
  std::vector<int> cores_;           ///< by rank
};

}  // namespace trellis::trainer
