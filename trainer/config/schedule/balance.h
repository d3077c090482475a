#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/schedule/partition.h"
#include "trainer/config/schedule/schedule_timing.h"

namespace trellis::trainer {

/// Costs of one micro-batch in the parts of a model, forward and backward together, in any unit.
struct LayerCosts {
  std::vector<std::int64_t> layers;
  std::int64_t embedding = 0;  ///< on the first stage
  std::int64_t head = 0;       ///< on the last one, with the loss
};

/// Cost of each stage under a partition.
[[nodiscard]] std::vector<std::int64_t> stage_costs(const LayerCosts& costs,
                                                    const std::vector<LayerRange>& ranges);

/// The partition whose slowest stage is fastest, and among those the one whose stages are most
/// equal (least sum of squares). Exact, by dynamic programming in O(stages · layers²). Throws
/// ConfigError when a stage would get no layer.
[[nodiscard]] std::vector<LayerRange> balance_layers(const LayerCosts& costs, int num_stages);

}  // namespace trellis::trainer
