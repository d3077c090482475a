#pragma once

#include <vector>

namespace trellis::trainer {

struct LayerRange {
  int first = 0;
  int end = 0;  ///< one past the last
  bool operator==(const LayerRange&) const = default;
};

/// Layers per stage, as even as possible, the remainder on the last stages. Throws ConfigError when a stage would get none.
std::vector<LayerRange> partition_layers(int num_layers, int num_stages);

}  // namespace trellis::trainer
