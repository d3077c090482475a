#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/copy.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/log.h"
#include "device/aten/memory_kernels.h"
#include "device/aten/recording.h"

namespace trellis::device {
namespace {

constexpr c10::DispatchKeySet kHandledAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

std::string side(const char* name, const at::Tensor& tensor) { return c10::str(name, "=", tensor.device()); }

/// One record per rank that takes part: the bound one's. The other side of a copy between devices is told in the scalars.
void record_transfer(const at::Tensor& source, const at::Tensor& target) {
  if (source.device() == target.device()) {
    record_copy(rank_state(target.device().index()), "aten::_copy_from", source, target, "");
    return;
  }
  const bool to_device =
      target.is_privateuseone() && (!source.is_privateuseone() || rank_state(target.device().index()).owned_by_this_thread());
  if (to_device) {
    record_copy(rank_state(target.device().index()), "aten::_copy_from", at::Tensor(), target, side("from", source));
  } else {
    record_copy(rank_state(source.device().index()), "aten::_copy_from", source, at::Tensor(), side("to", target));
  }
}

bool has_data(const at::Tensor& tensor) { return !tensor.is_privateuseone() || !rank_state(tensor.device().index()).shape_only(); }

at::Tensor on_host(const at::Tensor& tensor) { return tensor.is_privateuseone() ? host_alias(tensor) : tensor; }

void check_supported(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED((tensor.is_cpu() || tensor.is_privateuseone()) && tensor.layout() == c10::kStrided,
                              "neuron: copies go between strided tensors on cpu and neuron, got a ", tensor.layout(), " tensor on ",
                              tensor.device());
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool /*non_blocking*/) {
  check_supported(self);
  check_supported(dst);
  const c10::impl::ExcludeDispatchKeyGuard guard(kHandledAbove);
  if (has_data(self) && has_data(dst)) {
    on_host(dst).copy_(on_host(self));
  } else {
    self.expand(dst.sizes());  // what a copy with data would check
    if (dst.is_cpu()) dst.zero_();
  }
  record_transfer(self, dst);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

/// What `item()` answers when there are no data: a loss, a norm or a "found no infinity" of 1 lets a step go on.
c10::Scalar shape_only_scalar(const at::Tensor& self, RankState& owner) {
  const Scope& scope = owner.recorder().current_scope();
  const std::string place = c10::str("item() in phase '", scope.phase, "', layer '", scope.layer, "'");
  if (owner.first_time(place)) log_info(c10::str("shape-only: ", place, " answers 1 on rank ", owner.rank()));
  switch (self.scalar_type()) {
    case c10::ScalarType::Bool:
      return c10::Scalar(true);
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
      return c10::Scalar(1.0);
    default:
      return c10::Scalar(std::int64_t{1});
  }
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  RankState& owner = rank_state(self.device().index());
  const c10::impl::ExcludeDispatchKeyGuard guard(kHandledAbove);
  record_copy(owner, "aten::_local_scalar_dense", self, at::Tensor(), "");
  return owner.shape_only() ? shape_only_scalar(self, owner) : at::_local_scalar_dense(host_alias(self));
}

}  // namespace

void register_copy_kernels(torch::Library& library) {
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

}  // namespace trellis::device
