#pragma once

#include <string>
#include <vector>

#include "trainer/data/data_module.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/model.h"

namespace trellis::trainer {

/// Where infinity or NaN appears first in a step: the pass is repeated, looking at every weight and
/// every module's output. First is by micro-batch, then by the order of the layers, over all ranks.
/// Every rank calls it. Returns "the output of model.layers.3.mlp (micro-batch 2)" on the ranks
/// where it is, "" on the others; "nothing …" where all is finite.
[[nodiscard]] std::string first_non_finite(NxDPPModel& model, const ModuleContext& context,
                                           const std::vector<MicroBatch>& micro_batches);

/// Which reduced gradient is not finite, first in the order of backward (the last stage's last
/// parameter comes first); where all of them are and
/// only their norm overflows, the one with the largest element. Every rank calls it, between
/// reduce_gradients() and the step.
/// Returns "the gradient of model.layers.3.mlp.down_proj.weight on rank 5 (pipeline stage 1)" on
/// one rank, "" on the others.
[[nodiscard]] std::string first_non_finite_gradient(const NeuronZero1Optimizer& optimizer,
                                                    const ModuleContext& context);

}  // namespace trellis::trainer
