#pragma once

#include <optional>

#include "analysis/accuracy/published_rows.h"
#include "sim/sim.h"

namespace trellis::analysis {

/// The model's time for a row of benchmarks/published/dma.yaml, in microseconds. `system` is the
/// row's machine, one physical core a logical one; the simulator runs on it. nullopt, and a problem
/// of the row's document, when `what` is unknown. By `what`:
///   tiles       partitions, row_bytes, row_stride_bytes, issuers, descriptors:
///               one more tile in a long series of loads
///   engine      partitions, row_bytes: data of one load on its engines, without latency
///   timeline    partitions, columns, software, interval: of load, exp, store
///   host_copy   bytes: host to device
[[nodiscard]] std::optional<double> dma_row_us(const PublishedRow& row,
                                               const sim::SystemConfig& system,
                                               sim::Simulator& simulator);

}  // namespace trellis::analysis
