#pragma once

#include <string>
#include <vector>

#include "trainer/data/data_module.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/model.h"

namespace trellis::trainer {

/// Where infinity or NaN appears first in a step: the pass is repeated, looking at every weight and every module's output. First is by
/// micro-batch, then by the order of the layers, over all ranks. Every rank calls it.
/// Returns "the output of model.layers.3.mlp (micro-batch 2)" on the ranks where it is, "" on the others; "nothing …" where all is finite.
[[nodiscard]] std::string first_non_finite(NxDPPModel& model, const ModuleContext& context, const std::vector<MicroBatch>& micro_batches);

}  // namespace trellis::trainer
