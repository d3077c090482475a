#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/parameter.h"
#include "trainer/pipeline/stage.h"

namespace trellis::trainer {

/// The part of `config`'s model that lives on one pipeline stage; its parameters go to
/// context.parameters. With LoRA only those of adapters require a gradient. Throws ConfigError for
/// an architecture that this version does not build.
std::unique_ptr<PipelineStage> make_pipeline_stage(const ModelSection& config,
                                                   const ModuleContext& context,
                                                   const StageSlot& slot);

/// Names of the model's layers, the first one first: what model.pipeline_cuts may say.
std::vector<std::string> layer_names(const ModelSection& config);

}  // namespace trellis::trainer
