#pragma once

#include <string>

#include "trainer/config/run_config.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Compares what this rank has built with the plan's share of its pipeline rank. Returns "8 of 32
/// layers, 1,234 parameters in 99 tensors". Throws Error (kInternal), with both numbers, where they
/// differ: a run would train another model than the one that was asked for.
[[nodiscard]] std::string check_built(const RunConfig& config, const ParallelState& parallel,
                                      const ParameterList& parameters);

}  // namespace trellis::trainer
