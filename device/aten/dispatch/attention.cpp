#include "device/aten/dispatch/attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "device/aten/dispatch/as_cpu_tensors.h"

namespace trellis::device {
namespace {

at::Tensor cpu_shape(const at::Tensor& tensor) {
  // Only sizes, strides and types are looked at, so a Meta alias will not do but a CPU tensor
  // without bytes will.
  auto storage =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(0),
                                            c10::DataPtr(nullptr, c10::kCPU), nullptr, false);
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(std::move(storage)),
      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return at::Tensor(std::move(impl));
}

/// Grouped queries: heads of key and value represent several heads of the query. The fused kernel
/// repeats them itself.
at::Tensor as_if_repeated(const at::Tensor& tensor, std::int64_t heads) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  if (tensor.dim() == 4) sizes[1] = heads;
  std::vector<std::int64_t> strides = tensor.strides().vec();
  auto repeated = cpu_shape(tensor);
  repeated.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return repeated;
}

}  // namespace

std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& attn_mask,
                              double dropout_p, bool is_causal, std::optional<double> scale,
                              bool enable_gqa) {
  const bool mask_learns =
      attn_mask.has_value() && attn_mask->defined() && attn_mask->requires_grad();
  if (mask_learns) return static_cast<std::int64_t>(at::SDPBackend::math);
  const bool grouped = enable_gqa && query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                       key.size(1) == value.size(1) && key.size(1) > 0 &&
                       query.size(1) % key.size(1) == 0;
  const std::int64_t heads = grouped ? query.size(1) : 0;
  std::optional<at::Tensor> mask;
  if (attn_mask.has_value() && attn_mask->defined()) mask = cpu_shape(*attn_mask);
  // Excludes the keys of a Python mode (fake tensors) too: it does not know these tensors.
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::python_ks);
  const std::int64_t on_cpu =
      at::_fused_sdp_choice(cpu_shape(query), grouped ? as_if_repeated(key, heads) : cpu_shape(key),
                            grouped ? as_if_repeated(value, heads) : cpu_shape(value), mask,
                            dropout_p, is_causal, scale, grouped ? false : enable_gqa);
  return on_cpu == static_cast<std::int64_t>(at::SDPBackend::flash_attention)
             ? static_cast<std::int64_t>(at::SDPBackend::overrideable)
             : static_cast<std::int64_t>(at::SDPBackend::math);
}

}  // namespace trellis::device
