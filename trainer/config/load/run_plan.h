#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// One pipeline stage as it will be built.
struct StagePlan {
  int stage = 0;          ///< 0 … PP · VPP − 1
  int pipeline_rank = 0;  ///< stage mod PP
  int first_layer = 0, end_layer = 0;
  std::int64_t parameters_per_rank = 0;  ///< of one tensor-parallel rank
  bool operator==(const StagePlan&) const = default;
};

/// The groups of one axis: group g holds the ranks start(g) + i · stride.
struct GroupPlan {
  std::string axis;  ///< TP, CP, DP, PP
  int size = 1, count = 1, stride = 1;
  std::vector<std::vector<int>> replica_groups;  ///< Neuron's form
  bool operator==(const GroupPlan&) const = default;
};

struct SchedulePlan {
  std::string name;  ///< 1F1B, interleaved 1F1B, or "no pipeline"
  int num_microbatches = 1;
  double bubble = 0;  ///< (PP − 1) / (VPP · M): idle time in units of the busy time
  bool operator==(const SchedulePlan&) const = default;
};

/// Plan of a validated configuration, computed from the configuration alone, without LibTorch.
struct RunPlan {
  std::int64_t parameters = 0;
  std::vector<StagePlan> stages;
  std::vector<std::int64_t>
      parameters_of_pipeline_rank;  ///< on each of its ranks, all its stages together
  std::vector<GroupPlan> groups;
  SchedulePlan schedule;
};

[[nodiscard]] RunPlan plan_run(const RunConfig& config);

/// RunPlan::stages alone.
[[nodiscard]] std::vector<StagePlan> plan_stages(const RunConfig& config);

/// First and one past the last layer of each stage, by pipeline_cuts or evenly with the remainder
/// on the last stages.
[[nodiscard]] std::vector<std::pair<int, int>> layers_of_stages(const RunConfig& config);

}  // namespace trellis::trainer
