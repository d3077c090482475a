#include "runtime/calls/premultiplied.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace trellis::runtime {

std::optional<double> factor_of(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return std::nullopt;
  TORCH_CHECK(op.supplement_, "PREMUL_SUM: expected a factor, ReduceOp.PREMUL_SUM(0.5)");
  const auto& given = static_cast<const c10d::PreMulSumSupplement&>(*op.supplement_);
  return given.tensor_factor.defined() ? given.tensor_factor.item<double>() : given.double_factor;
}

at::Tensor multiplied(const at::Tensor& host, double factor) {
  TORCH_CHECK(host.is_floating_point() || host.is_complex(),
              "PREMUL_SUM: expected a tensor of a floating type, got ", host.scalar_type());
  const at::AutoDispatchBelowADInplaceOrView plain_copy;
  return host.contiguous().mul(factor);
}

}  // namespace trellis::runtime
