#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace trellis::device {

/// The overload without `out=` of an operator that has it; empty: there is none. Its shapes tell
/// what the outputs are resized to.
[[nodiscard]] std::optional<c10::OperatorHandle> twin_without_out(const c10::OperatorHandle& op);

/// `inferred` are the twin's results on Meta tensors: takes the arguments of the operator with
/// `out=` from the stack, resizes its outputs accordingly and pushes them.
void resize_outs(const torch::jit::Stack& inferred, torch::jit::Stack& stack,
                 std::size_t num_arguments, std::size_t num_outs);

}  // namespace trellis::device
