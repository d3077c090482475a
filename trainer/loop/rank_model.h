#pragma once

#include <memory>
#include <vector>

#include "trainer/config/run_config.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/comm.h"
#include "trainer/pipeline/stage.h"

/// Builds a rank's part of a configuration's model: for training, and for callers that need the
/// shapes of all ranks and no values.
namespace trellis::trainer {

/// Where a rank's model is made.
struct ModelPlace {
  at::Device device = at::kCPU;
  bool shape_only = false;
};
[[nodiscard]] ModuleContext module_context(const RunConfig& config, const ModelPlace& place,
                                           const ParallelState& parallel,
                                           ParameterList& parameters);

/// This rank's virtual stages, the first chunk first.
[[nodiscard]] std::vector<std::unique_ptr<PipelineStage>> build_stages(
    const RunConfig& config, const ModuleContext& context);

/// The tensor that crosses the border between two stages for a micro-batch of
/// data.micro_batch_size.
[[nodiscard]] BorderTensor stage_border(const RunConfig& config, const ModuleContext& context);

/// Context-parallel ranks read the same samples; each takes its part of their sequences. Labels and
/// positions follow their tokens. An attention mask stays whole: it says which tokens of other
/// ranks a query may read.
void take_sequence_parts(std::vector<MicroBatch>& batches, const ModuleContext& context);

}  // namespace trellis::trainer
