#include "device/aten/dispatch/boxed_kernel.h"

#include <mutex>
#include <unordered_map>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "device/aten/dispatch/recording.h"
#include "device/aten/dispatch/widen_unsupported_types.h"
#include "device/aten/shapes/kernel_tables.h"
#include "device/aten/shapes/shape_out.h"
#include "device/aten/state/cpu_generator.h"
#include "device/aten/state/generator.h"

namespace trellis::device {
namespace {

thread_local RankState* running = nullptr;

class RunningGuard {
 public:
  explicit RunningGuard(RankState& owner) : before_(running) { running = &owner; }
  ~RunningGuard() { running = before_; }
  RunningGuard(const RunningGuard&) = delete;
  RunningGuard& operator=(const RunningGuard&) = delete;

 private:
  RankState* before_;
};

std::string describe(const Scope& scope) {
  return c10::str("phase '", scope.phase, "', layer '", scope.layer, "', micro-batch ",
                  scope.microbatch);
}

}  // namespace

at::Generator running_generator() {
  TORCH_INTERNAL_ASSERT(running != nullptr, "running_generator() outside of a CPU function");
  return cpu_generator(at::Generator(), running->device());
}

void BoxedKernel::run_on_host(const c10::OperatorHandle& op, RankState& owner,
                              torch::jit::Stack& stack) {
  constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
  if (C10_UNLIKELY(info_.cpu_function.has_value())) {
    const RunningGuard guard(owner);
    run_in_wider_types(info_, stack, [&](torch::jit::Stack& arguments) {
      info_.cpu_function->callBoxed(op, kCpu, &arguments);
    });
    return;
  }
  run_in_wider_types(info_, stack,
                     [&](torch::jit::Stack& arguments) { op.redispatchBoxed(kCpu, &arguments); });
}

void BoxedKernel::infer_by_twin(torch::jit::Stack& stack) {
  constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);
  const auto end_of_inputs = stack.end() - static_cast<std::ptrdiff_t>(info_.num_outs);
  torch::jit::Stack inferred(stack.end() - static_cast<std::ptrdiff_t>(info_.args.size()),
                             end_of_inputs);
  if (info_.twin_shape_function.has_value()) {
    info_.twin_shape_function->callBoxed(*info_.twin, kMeta, &inferred);
  } else {
    info_.twin->redispatchBoxed(kMeta, &inferred);
  }
  resize_outs(inferred, stack, info_.args.size(), info_.num_outs);
}

void BoxedKernel::infer_shapes(const c10::OperatorHandle& op, RankState& owner,
                               torch::jit::Stack& stack) {
  constexpr c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);
  const Scope& scope = owner.recorder().current_scope();
  try {
    const RunningGuard guard(owner);
    if (info_.shape_function.has_value()) {
      info_.shape_function->callBoxed(op, kMeta, &stack);
    } else if (info_.cpu_function.has_value()) {  // made of operators that have Meta kernels
      info_.cpu_function->callBoxed(op, kMeta, &stack);
    } else if (info_.twin.has_value()) {
      infer_by_twin(stack);
    } else {
      op.redispatchBoxed(kMeta, &stack);
    }
  } catch (const DataDependent& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "neuron: the result of ", info_.name,
                                " depends on data, which shape-only mode does not have (",
                                describe(scope), "): ", error.hint);
  } catch (const c10::NotImplementedError& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "neuron: ", info_.name, " has no shape function (", describe(scope),
        "): run it in materialised mode, or add one to device/aten/shape_*.cpp. LibTorch says: ",
        error.what_without_backtrace());
  }
}

void BoxedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                             torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(kHandledAbove);
  std::string host_numbers;
  append_host_numbers(info_, *stack,
                      host_numbers);  // before relabeling: shape-only mode takes them away
  Relabeling relabeling(info_, *stack);
  relabeling.enter();
  RankState& owner = relabeling.owner();
  const bool recorded = !info_.view && should_record(owner, info_.name);
  std::string scalars;
  if (recorded) {
    scalars.swap(owner.scratch());  // keeps its capacity; a nested call finds an empty one
    scalars.clear();
    append_scalars(info_, *stack, scalars);
    if (!host_numbers.empty()) scalars.append(host_numbers, scalars.empty() ? 1 : 0);
  }
  try {
    if (C10_UNLIKELY(owner.shape_only())) {
      infer_shapes(op, owner, *stack);
    } else {
      run_on_host(op, owner, *stack);
    }
  } catch (...) {
    relabeling.adopt_written();
    throw;
  }
  relabeling.leave();
  if (recorded) {
    record_call(info_, relabeling, *stack, scalars);
    scalars.swap(owner.scratch());
  }
}

void boxed_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
  static std::mutex mutex;
  static auto* const kernels =
      new std::unordered_map<c10::OperatorName, std::unique_ptr<BoxedKernel>>;
  BoxedKernel* kernel = nullptr;
  {
    const std::lock_guard lock(mutex);
    std::unique_ptr<BoxedKernel>& slot = (*kernels)[op.operator_name()];
    if (!slot) slot = std::make_unique<BoxedKernel>(op);
    kernel = slot.get();
  }
  (*kernel)(op, keys, stack);
}

}  // namespace trellis::device
