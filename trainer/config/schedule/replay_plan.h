#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "trainer/config/schedule/tasks.h"

namespace trellis::trainer {

/// A training pass of which only the beginning and the end are executed. Between warm-up and end
/// every rank does the same again and again: one forward and one backward of 1F1B, or, with virtual
/// stages, those of PP micro-batches through all chunks. PP = 2, M = 9 on the last stage:
///
///   all        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8
///   executed   F0 B0 F1 B1 F2 B2                         F7 B7 F8 B8
///   repeated                     F3 … B6: four times the period F2 B2, which did what F1 B1 did
///
/// Executed is a schedule of 5 micro-batches; the last ones are renumbered.
///
/// All ranks execute the schedule of one and the same smaller number of micro-batches, so their
/// messages match as before.
struct ReplayPlan {
  PipelineShape executed;  ///< with fewer micro-batches
  int period = 1;          ///< micro-batches
  int times = 0;           ///< periods that are repeated
  [[nodiscard]] int skipped() const { return period * times; }
};

/// None: there is nothing to gain.
[[nodiscard]] std::optional<ReplayPlan> plan_replay(const PipelineShape& shape);

/// The ends of the first three periods in a rank's tasks for the executed shape. The third period
/// must do the same as the second, and is repeated.
[[nodiscard]] std::array<std::size_t, 3> period_ends(const std::vector<Task>& tasks,
                                                     const ReplayPlan& plan);

}  // namespace trellis::trainer
