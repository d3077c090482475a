#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/ranks/world.h"
#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"
#include "trainer/modules/moe/routing_ledger.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Un-sharded tensors by their global name.
using NamedTensors = std::map<std::string, at::Tensor>;

struct ComputedStep {
  double loss = 0;
  double grad_norm = 0;
  NamedTensors gradients;      ///< reduced over all ranks, before clipping
  RoutedTokens routed_tokens;  ///< of a mixture of experts, over all ranks
};

/// All that a training run computed, as if it had run on one rank.
struct RunNumbers {
  std::vector<ComputedStep> steps;
  NamedTensors weights;            ///< after the last step
  std::vector<std::string> names;  ///< of the parameters of the first pipeline rank's stages, in
                                   ///< order of construction, then the next …
  std::vector<std::string> unequal_copies;  ///< weights that ranks hold in common and that are not
                                            ///< the same bits at the end
};

/// Wrong parts that a run may be given on purpose; all optional.
struct RunChanges {
  std::function<void(RunConfig&)> config;  ///< after it was read, by all ranks
  std::function<ParallelState(const ParallelState&)> groups;
  std::function<void(ParameterList&, const ParallelState&)> parameters;
  std::function<std::shared_ptr<const DataModule>(std::shared_ptr<const DataModule>)> data;
};

/// Trains on ranks of `world`, whose size is the configuration's, and gathers on the CPU what each
/// step computed. Throws what the run throws.
[[nodiscard]] RunNumbers train_and_gather(const RunConfig& config,
                                          std::shared_ptr<const DataModule> data,
                                          const RunChanges& changes = {},
                                          runtime::WorldOptions world = {});

}  // namespace trellis::trainer
