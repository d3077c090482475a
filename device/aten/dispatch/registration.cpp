#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include "device/aten/dispatch/attention.h"
#include "device/aten/dispatch/boxed_kernel.h"
#include "device/aten/dispatch/direct_kernels.h"
#include "device/aten/dispatch/memory_kernels.h"
#include "device/aten/shapes/kernel_tables.h"

/// Everything that LibTorch's dispatcher learns about `neuron`, in one place and one order.
namespace trellis::device {
namespace {

/// Operators without a CPU kernel that the device runs as one all the same: their composite kernel
/// would be recorded as many.
constexpr std::array kWholeOperators = {"aten::embedding",
                                        "aten::index_put_",
                                        "aten::masked_fill.Scalar",
                                        "aten::masked_fill.Tensor",
                                        "aten::_safe_softmax",
                                        "aten::logsumexp",
                                        "aten::repeat",
                                        "aten::convolution",
                                        "aten::_convolution",
                                        "aten::convolution_backward",
                                        "aten::_grouped_mm",
                                        "aten::diag_embed",
                                        "aten::constant_pad_nd",
                                        "aten::slice_backward",
                                        "aten::select_backward",
                                        "aten::slice_scatter",
                                        "aten::select_scatter",
                                        "aten::index_fill.int_Scalar",
                                        "aten::conj_physical_",
                                        "aten::addr_",
                                        "aten::mode.values"};
constexpr std::string_view kForeach = "aten::_foreach_";

/// Operators with a CPU kernel that must not be replaced: they answer questions about the host or
/// about metadata.
constexpr std::array kKept = {"aten::_fused_sdp_choice",
                              "aten::_efficientzerotensor",
                              "aten::from_file",
                              "aten::_nnpack_available",
                              "aten::_debug_has_internal_overlap",
                              "aten::_lazy_clone",
                              "aten::is_pinned",
                              "aten::_pin_memory"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

/// The dispatcher prefers a composite kernel to a backend's fallback. So the boxed kernel is
/// registered by name wherever there is a CPU kernel, else the device would see the
/// pieces instead of the operator.
bool needs_boxed_kernel(const c10::OperatorHandle& op, std::string_view name) {
  if (!op.hasSchema() || op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
      is_view(op.schema()) || contains(kKept, name))
    return false;
  if (find_cpu_function(name).has_value()) return true;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return true;
  const bool foreach =
      name.starts_with(kForeach) &&
      !name.ends_with("out");  // `out=` forms copy, which notifies autograd's versions
  return (contains(kWholeOperators, name) || foreach) && is_composite(op);
}

void register_boxed_kernels(torch::Library& library) {
  constexpr std::string_view kAten = "aten::";
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with(kAten)) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !needs_boxed_kernel(*op, c10::toString(name))) continue;
    const std::string unqualified = c10::toString(name).substr(kAten.size());
    library.impl(unqualified.c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(*op)));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  register_memory_kernels(library);
  register_copy_kernels(library);
  register_direct_kernels(library);
  register_boxed_kernels(library);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

}  // namespace
}  // namespace trellis::device

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &trellis::device::choose_attention)

}  // namespace at::native
