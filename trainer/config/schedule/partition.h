#pragma once

#include <string>
#include <vector>

namespace trellis::trainer {

struct LayerRange {
  int first = 0;
  int end = 0;  ///< one past the last
  bool operator==(const LayerRange&) const = default;
};

/// Layers per stage, as even as possible, the remainder on the last stages. With virtual stages
/// num_stages is PP · VPP, which may be anything up to the number of layers. Throws ConfigError
/// when a stage would get none.
std::vector<LayerRange> partition_layers(int num_layers, int num_stages);

/// Layers per stage by `pipeline_cuts`: the name of the last layer of each stage but the final one,
/// in order. Throws one ConfigError with all that is wrong: the list's length, names that are no
/// layer, an order in which a stage would get no layer.
std::vector<LayerRange> partition_layers(const std::vector<std::string>& layer_names,
                                         const std::vector<std::string>& cuts, int num_stages);

}  // namespace trellis::trainer
