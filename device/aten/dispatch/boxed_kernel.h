#pragma once

#include <memory>

#include <ATen/core/boxing/KernelFunction.h>

#include "device/aten/dispatch/op_info.h"

namespace trellis::device {

class RankState;

/// The kernel of almost every operator on `neuron`: relabel, run on the host (or infer shapes), map
/// back, charge, record.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const c10::OperatorHandle& op) : info_(op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
  [[nodiscard]] const OpInfo& info() const { return info_; }

 private:
  void run_on_host(const c10::OperatorHandle& op, RankState& owner, torch::jit::Stack& stack);
  void infer_shapes(const c10::OperatorHandle& op, RankState& owner, torch::jit::Stack& stack);
  void infer_by_twin(torch::jit::Stack& stack);

  const OpInfo info_;
};

/// Dispatch keys that the kernels of this device leave to the layers above it.
inline constexpr c10::DispatchKeySet kHandledAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

/// For operators that no one registered, e.g. of other libraries: looks the BoxedKernel up by
/// operator.
void boxed_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack);

}  // namespace trellis::device
