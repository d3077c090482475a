#pragma once

#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "device/aten/dispatch/op_info.h"

namespace trellis::device {

/// The widening of the first argument whose type has one; nullptr: none. `stack` ends with the
/// operator's arguments.
[[nodiscard]] const Widening* widening_for(const OpInfo& info, const torch::jit::Stack& stack);

/// One call in wider types.
class WideCall {
 public:
  WideCall(const OpInfo& info, const Widening& used, const torch::jit::Stack& stack);
  /// The arguments as the kernel takes them replace what `stack` held from `base` on.
  void enter(torch::jit::Stack& stack);
  /// The results, in the types that they would have had, replace what the kernel returned.
  void leave(torch::jit::Stack& stack) const;

 private:
  at::Tensor widen(const at::Tensor& tensor, const ArgInfo& arg);
  c10::IValue widen(const c10::IValue& value, const ArgInfo& arg);
  [[nodiscard]] at::Tensor result(const at::Tensor& computed) const;

  struct Written {
    at::Tensor own, wide;
  };
  const OpInfo& info_;
  const Widening& used_;
  std::size_t base_;  ///< of the arguments in the stack
  torch::jit::Stack arguments_;
  std::vector<Written> written_;
};

/// Runs a CPU kernel on CPU tensors: in the tensors' own types, or, where the kernel refuses one
/// that the operator has a Widening for, in the wider one. `stack` ends with the operator's
/// arguments.
template <typename Kernel>
void run_in_wider_types(const OpInfo& info, torch::jit::Stack& stack, const Kernel& kernel) {
  const Widening* const used = widening_for(info, stack);
  if (C10_LIKELY(used == nullptr)) return kernel(stack);
  WideCall call(info, *used, stack);
  std::exception_ptr refusal;  // in the types that the caller gave
  try {
    return kernel(stack);
  } catch (const c10::NotImplementedError&) {  // no kernel for the type: what else is wrong, the
                                               // second try says
  } catch (const c10::Error&) {
    refusal = std::current_exception();
  }
  call.enter(stack);
  try {
    kernel(stack);
  } catch (const c10::Error&) {
    if (refusal) std::rethrow_exception(refusal);
    throw;
  }
  call.leave(stack);
}

}  // namespace trellis::device
