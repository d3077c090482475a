#pragma once

#include "traces/report/software_memory.h"
#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// The host reads a value of each micro-batch's forward pass, which ends a graph of PyTorch/XLA:
/// the metrics of TRL's loss.
[[nodiscard]] bool reads_forward(const RunConfig& config);

[[nodiscard]] analysis::SoftwareFacts software_facts(const RunConfig& config,
                                                     bool functionalization);

}  // namespace trellis::trainer
