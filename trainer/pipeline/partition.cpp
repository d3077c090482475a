#include "trainer/pipeline/partition.h"

#include <string>

#include "base/error.h"

namespace trellis::trainer {

std::vector<LayerRange> partition_layers(int num_layers, int num_stages) {
  if (num_layers < num_stages) {
    throw ConfigError("distributed_strategy.pipeline_model_parallel_size: each stage needs a layer: expected at most " +
                      std::to_string(num_layers) + " (model.num_layers), got " + std::to_string(num_stages));
  }
  std::vector<LayerRange> ranges;
  int first = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool takes_one_more = stage >= num_stages - num_layers % num_stages;
    const int count = num_layers / num_stages + (takes_one_more ? 1 : 0);
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

}  // namespace trellis::trainer
