#pragma once

#include <string_view>

#include "device/driver/session.h"

namespace trellis::device {

/// The phase of the calling thread, for a program that announces no phases: inside autograd's
/// engine `backward`, inside one of PyTorch's own optimizer scopes `optimizer`, else `forward`, or
/// `eval` where gradients are off. The innermost of engine and optimizer counts. So an optimizer
/// stepped from a backward hook is `optimizer`, and a backward called by an optimizer's closure is
/// `backward`.
[[nodiscard]] AutoPhase phase_here();

/// "Optimizer.step#AdamW.step" and "Optimizer.zero_grad#AdamW.zero_grad", as torch.optim names its
/// user scopes; other names are ignored.
void enter_optimizer_scope(std::string_view user_scope);
void leave_optimizer_scope(std::string_view user_scope);

}  // namespace trellis::device
