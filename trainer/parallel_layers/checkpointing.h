#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// A part of the model whose intermediate results are not kept: a pure function of its inputs, of
/// weights and of the StepPosition.
using CheckpointedFunction = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// Activation recomputation. Runs `function` without recording, keeps its inputs only, and runs it
/// again, recording, when the gradient arrives (re-entrant: it works inside other checkpoints). The
/// second run sees the step position (dropout masks) and the autocast mode of the first, so that
/// loss and gradients have the same bits as without. Undefined inputs are passed on as they are.
/// REQUIRES: the output is a fresh tensor; while gradients are recorded, an input that requires one
/// — otherwise the gradients of the weights inside would be lost, and c10::Error says so.
[[nodiscard]] at::Tensor checkpoint(const ModuleContext& context,
                                    const CheckpointedFunction& function,
                                    const std::vector<at::Tensor>& inputs);
/// The same for a module that keeps no whole context.
[[nodiscard]] at::Tensor checkpoint(const std::shared_ptr<StepPosition>& position,
                                    const CheckpointedFunction& function,
                                    const std::vector<at::Tensor>& inputs);

}  // namespace trellis::trainer
