#pragma once

#include <memory>

#include <ATen/record_function.h>

#include "device/aten/state/rank_state.h"

/// Finds out the purpose of a buffer without the program's help: any LibTorch or Python training
/// loop has AccumulateGrad nodes and optimizer steps.
namespace trellis::device {

/// Called after an autograd node ran: AccumulateGrad's tensor is a parameter, and the tensor that
/// it accumulated into is a gradient.
void categorize_accumulated(const at::RecordFunction& node);

/// Called at the start and the end of a user scope: memory that an optimizer's step allocates on
/// the thread's ranks and keeps is its state.
[[nodiscard]] std::unique_ptr<at::ObserverContext> begin_optimizer_step(
    const at::RecordFunction& scope);
void end_optimizer_step(const at::ObserverContext* begun);

}  // namespace trellis::device
