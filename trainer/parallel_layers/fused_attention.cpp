#include "trainer/parallel_layers/fused_attention.h"

#include <cstdint>
#include <optional>

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward.h>

namespace trellis::trainer {
namespace {

// The CPU's operator knows no groups of queries.

at::Tensor repeat_kv(const at::Tensor& heads, std::int64_t count) {
  const std::int64_t copies = count / heads.size(1);
  if (copies == 1) return heads;
  return heads.unsqueeze(2).expand({-1, -1, copies, -1, -1}).flatten(1, 2);
}

at::Tensor sum_kv(const at::Tensor& gradient, std::int64_t count) {
  if (gradient.size(1) == count) return gradient;
  return gradient.unflatten(1, {count, -1}).sum(2);
}

std::optional<at::Tensor> optional_mask(const FusedAttention& in) {
  return in.mask.defined() ? std::optional(in.mask) : std::nullopt;
}

}  // namespace

bool has_fused_attention(const at::Device& device) {
  return device.is_cpu() || device.is_privateuseone();
}

std::tuple<at::Tensor, at::Tensor> fused_attention(const FusedAttention& in) {
  if (in.query.device().is_cpu()) {
    const std::int64_t heads = in.query.size(1);
    return at::_scaled_dot_product_flash_attention_for_cpu(in.query, repeat_kv(in.key, heads),
                                                           repeat_kv(in.value, heads), 0.0,
                                                           in.causal, optional_mask(in));
  }
  const auto result = at::_scaled_dot_product_fused_attention_overrideable(
      in.query, in.key, in.value, optional_mask(in), 0.0, in.causal);
  return {std::get<0>(result), std::get<1>(result)};
}

std::array<at::Tensor, 3> fused_attention_backward(const FusedAttention& in, const at::Tensor& grad,
                                                   const at::Tensor& out,
                                                   const at::Tensor& logsumexp) {
  if (in.query.device().is_cpu()) {
    const std::int64_t heads = in.query.size(1), kv_heads = in.key.size(1);
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, in.query, repeat_kv(in.key, heads), repeat_kv(in.value, heads), out, logsumexp, 0.0,
        in.causal, optional_mask(in));
    return {dq, sum_kv(dk, kv_heads), sum_kv(dv, kv_heads)};
  }
  auto [dq, dk, dv, dmask] = at::_scaled_dot_product_fused_attention_overrideable_backward(
      grad, in.query, in.key, in.value, in.mask, {true, true, true, false}, out, logsumexp,
      at::Tensor(), at::Tensor(), in.query.size(2), in.key.size(2), 0.0, in.causal, at::Tensor(),
      at::Tensor());
  return {dq, dk, dv};
}

}  // namespace trellis::trainer
