#pragma once

#include "analysis/accuracy/published_rows.h"
#include "sim/sim.h"

namespace trellis::analysis {

/// The model's interval, in microseconds, between independent instructions of the kind that a row
/// of benchmarks/published/intervals.yaml names: as it was measured, from the times of 16 and 272
/// of them. `system` is the row's machine, one physical core a logical one. Throws ConfigError that
/// names the row when its instruction cannot be read or breaks a rule of the core.
[[nodiscard]] double interval_row_us(const PublishedRow& row, const sim::SystemConfig& system,
                                     sim::Simulator& simulator);

}  // namespace trellis::analysis
