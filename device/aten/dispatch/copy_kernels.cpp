#include <ATen/RedispatchFunctions.h>
#include <ATen/ops/_linalg_check_errors_native.h>
#include <ATen/ops/copy.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/log.h"
#include "device/aten/dispatch/memory_kernels.h"
#include "device/aten/dispatch/recording.h"
#include "device/aten/state/pinned_memory.h"
#include "sim/collectives/stage_steps.h"

namespace trellis::device {
namespace {

constexpr c10::DispatchKeySet kHandledAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

bool in_pinned_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() > 0 && is_pinned(tensor.const_data_ptr());
}

std::string side(const char* name, const at::Tensor& tensor) {
  return c10::str(name, "=", tensor.device(), in_pinned_memory(tensor) ? " pinned=1" : "");
}

/// One record per rank that takes part: the bound one's. The other side of a copy between devices
/// is recorded in the scalars.
void record_transfer(const at::Tensor& source, const at::Tensor& target) {
  if (source.device() == target.device()) {
    record_copy(rank_state(target.device().index()), "aten::_copy_from", source, target, "");
    return;
  }
  const bool to_device =
      target.is_privateuseone() &&
      (!source.is_privateuseone() || rank_state(target.device().index()).owned_by_this_thread());
  if (to_device) {
    record_copy(rank_state(target.device().index()), "aten::_copy_from", at::Tensor(), target,
                side("from", source));
  } else {
    record_copy(rank_state(source.device().index()), "aten::_copy_from", source, at::Tensor(),
                side("to", target));
  }
}

bool has_data(const at::Tensor& tensor) {
  return !tensor.is_privateuseone() || !rank_state(tensor.device().index()).shape_only();
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_privateuseone() ? host_alias(tensor) : tensor;
}

void check_supported(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      (tensor.is_cpu() || tensor.is_privateuseone()) && tensor.layout() == c10::kStrided,
      "neuron: copies go between strided tensors on cpu and neuron, got a ", tensor.layout(),
      " tensor on ", tensor.device());
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  check_supported(self);
  check_supported(dst);
  const c10::impl::ExcludeDispatchKeyGuard guard(kHandledAbove);
  if (has_data(self) && has_data(dst)) {
    if (dst.is_privateuseone()) storage_of(dst).before_write();
    on_host(dst).copy_(on_host(self));
  } else {
    self.expand(dst.sizes());  // what a copy with data would check
    if (dst.is_cpu()) dst.zero_();
  }
  record_transfer(self, dst);
  const bool host_waits =
      self.is_privateuseone() && dst.is_cpu() && !(non_blocking && in_pinned_memory(dst));
  if (host_waits) host_reads(rank_state(self.device().index()));
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

/// The result of `item()` when there are no data: a loss, a norm or a "found no infinity" of 1 lets
/// a step go on.
c10::Scalar shape_only_scalar(const at::Tensor& self, RankState& owner) {
  const Scope& scope = owner.recorder().current_scope();
  const std::string place =
      c10::str("item() in phase '", scope.phase, "', layer '", scope.layer, "'");
  if (owner.first_time(place))
    log_info(c10::str("shape-only: ", place, " answers 1 on rank ", owner.rank()));
  switch (self.scalar_type()) {
    case c10::ScalarType::Bool: return c10::Scalar(true);
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double: return c10::Scalar(1.0);
    default: return c10::Scalar(std::int64_t{1});
  }
}

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  RankState& owner = rank_state(self.device().index());
  const c10::impl::ExcludeDispatchKeyGuard guard(kHandledAbove);
  record_copy(owner, "aten::_local_scalar_dense", self, at::Tensor(), "");
  host_reads(owner);
  return owner.shape_only() ? shape_only_scalar(self, owner)
                            : at::redispatch::_local_scalar_dense(
                                  kCpu, host_alias(self));  // no second event for profilers
}

/// Factorisations ask whether they failed. Without data they did not.
void linalg_check_errors(const at::Tensor& info, c10::string_view api_name, bool is_matrix) {
  if (!rank_state(info.device().index()).shape_only())
    at::native::_linalg_check_errors(info, api_name, is_matrix);
}

}  // namespace

/// A copy reads lazily conjugated or negated tensors as they are: to materialise them first would
/// be another copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  for (const char* op : {"_copy_from", "_copy_from_and_resize"})
    library.impl(op, torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  for (const char* op : {"_copy_from", "_copy_from_and_resize"})
    library.impl(op, torch::CppFunction::makeFallthrough());
}

void register_copy_kernels(torch::Library& library) {
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_linalg_check_errors", TORCH_FN(linalg_check_errors));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

}  // namespace trellis::device
