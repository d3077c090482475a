#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/schedule/tasks.h"

namespace trellis::trainer {

/// One micro-batch through one virtual stage. The unit is the caller's: picoseconds, FLOPs, or
/// anything that adds up.
struct PassCost {
  std::int64_t forward = 1, backward = 2;
  bool operator==(const PassCost&) const = default;
};

/// A forward or backward of a rank, from start to end.
struct PassSlot {
  Task task;
  std::int64_t start = 0, end = 0;
  bool operator==(const PassSlot&) const = default;
};

/// A training step's passes in virtual time: what `training_tasks` lists, each as early as its rank
/// and its input allow.
struct ScheduleTiming {
  PipelineShape shape;
  std::vector<std::vector<PassSlot>> ranks;  ///< in the order of the task list
  std::int64_t end = 0;                      ///< of the last backward

  [[nodiscard]] std::int64_t busy(int rank) const;
  /// Idle time of all ranks as a share of ranks × end.
  [[nodiscard]] double bubble() const;
  /// Most (micro-batch, chunk) pairs of a rank whose forward began and whose backward has not
  /// ended: their activations are kept.
  [[nodiscard]] int peak_in_flight(int rank) const;
};

/// `costs`: one per virtual stage, PP · VPP of them. `transfer`: from the end of a pass until its
/// output is on another rank; it keeps no rank busy.
[[nodiscard]] ScheduleTiming time_schedule(const PipelineShape& shape,
                                           const std::vector<PassCost>& costs,
                                           std::int64_t transfer = 0);

/// The bubble of equal stages without transfers, (PP − 1) / (VPP · M + PP − 1): Narayanan et al.,
/// "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), §2.2,
/// there in units of the busy time.
[[nodiscard]] double uniform_bubble(const PipelineShape& shape);

}  // namespace trellis::trainer
