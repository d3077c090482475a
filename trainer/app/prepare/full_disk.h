#pragma once

#include "trainer/checkpoint/training/run_checkpoints.h"
#include "trainer/loop/faults.h"

namespace trellis::trainer {

/// Fails the writes of checkpoints in the steps whose disk `faults` says to be full. `checkpoints`:
/// null: none are saved. REQUIRES: `faults` outlives them. Throws ConfigError when it can have no
/// effect.
void fill_disk(const FaultPlan& faults, const RunConfig& config,
               checkpoint::RunCheckpoints* checkpoints);

}  // namespace trellis::trainer
