#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nansum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sum.h>
#include <c10/util/irange.h>

#include "device/aten/shapes/kernel_tables.h"
#include "sim/collectives/stage_steps.h"

namespace trellis::device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ── attention: the fused operator of the device, by the CPU's flash kernel ──

/// Grouped queries: [B, Hkv, L, D] → [B, Hq, L, D].
Tensor repeat_heads(const Tensor& tensor, const Tensor& query) {
  return tensor.size(1) == query.size(1)
             ? tensor
             : tensor.repeat_interleave(query.size(1) / tensor.size(1), 1);
}

/// The gradient of repeat_heads.
Tensor sum_heads(const Tensor& gradient, const Tensor& original) {
  if (gradient.size(1) == original.size(1)) return gradient;
  const std::int64_t group = gradient.size(1) / original.size(1);
  return gradient.unflatten(1, {original.size(1), group}).sum(2);
}

using FusedAttention =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FusedAttention attention(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& attn_bias, double dropout_p, bool is_causal,
                         bool /*return_debug_mask*/, std::optional<double> scale) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, repeat_heads(key, query), repeat_heads(value, query), dropout_p, is_causal, attn_bias,
      scale);
  return {output,      logsumexp, Tensor(), Tensor(), query.size(2),
          key.size(2), Tensor(),  Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& attn_bias, std::array<bool, 4> mask, const Tensor& out, const Tensor& logsumexp,
    const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout_p, bool is_causal,
    const Tensor&, const Tensor&, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!mask[3], "neuron: fused attention has no gradient for its mask");
  if (!grad_out.defined()) return {};  // what follows does not depend on the output
  const OptionalTensor bias = attn_bias.defined() ? OptionalTensor(attn_bias) : std::nullopt;
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out, query, repeat_heads(key, query), repeat_heads(value, query), out, logsumexp,
      dropout_p, is_causal, bias, scale);
  return {dq, sum_heads(dk, key), sum_heads(dv, value), Tensor()};
}

// ── RMS norm: one operator on the device, a decomposition on the CPU ──

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, c10::IntArrayRef normalized_shape,
                                    const OptionalTensor& weight, std::optional<double> eps) {
  return at::_fused_rms_norm(input, normalized_shape, weight, eps);
}

/// The computation of autograd for the CPU's decomposition, operation by operation, so that both
/// devices agree bit for bit: y = (x · r) · w with r = rsqrt(mean(x²) + ε).
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out, const Tensor& input,
                                             c10::IntArrayRef normalized_shape, const Tensor& rstd,
                                             const OptionalTensor& weight,
                                             std::array<bool, 2> mask) {
  const c10::ScalarType math = at::toOpMathType(input.scalar_type());
  const Tensor x = input.to(math);
  const Tensor grad = grad_out.to(math);
  const bool has_weight = weight.has_value() && weight->defined();
  Tensor grad_input, grad_weight;
  if (mask[1] && has_weight)
    grad_weight = at::sum_to(grad * (x * rstd), weight->sizes()).to(weight->scalar_type());
  if (mask[0]) {
    std::vector<std::int64_t> dims;
    std::int64_t count = 1;
    for (const auto i : c10::irange(normalized_shape.size())) {
      dims.push_back(input.dim() - static_cast<std::int64_t>(i) - 1);
      count *= normalized_shape[i];
    }
    const Tensor grad_normed = has_weight ? grad * *weight : grad;
    const Tensor grad_r = at::sum_to(grad_normed * x, rstd.sizes());
    const Tensor grad_mean = (-0.5 * grad_r * rstd.pow(3)).expand(x.sizes()) / count;
    grad_input = (grad_normed * rstd + grad_mean * (2.0 * x)).to(input.scalar_type());
  }
  return {grad_input, grad_weight};
}

// ── dropout: the CPU kernel draws from the process-wide generator, which rank threads would share

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  if (input.numel() == 0)
    return {input, at::empty_like(input)};  // the CPU's mask, too, is of the input's type here
  if (!train.value_or(true))
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const double keep = 1.0 - p;
  const double scale = keep == 0 ? 0.0 : 1.0 / keep;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(keep, running_generator());
  return {input.mul(mask).mul_(scale), mask};
}

// ── sums without NaNs: the CPU refuses complex numbers, CUDA does not ──

using Dims = at::OptionalIntArrayRef;
using OptionalType = std::optional<at::ScalarType>;

Tensor nansum(const Tensor& self, Dims dim, bool keepdim, OptionalType dtype) {
  if (!self.is_complex()) return at::nansum(self, dim, keepdim, dtype);
  return at::sum(self.masked_fill(self.isnan(), 0), dim, keepdim, dtype);
}

template <typename Function>
CpuFunction entry(std::string_view op, Function* function) {
  return {op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)};
}

std::vector<CpuFunction> make_table() {
  std::vector<CpuFunction> functions = {
      entry("aten::_scaled_dot_product_fused_attention_overrideable", &attention),
      entry("aten::_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward),
      entry("aten::_fused_rms_norm", &rms_norm),
      entry("aten::_fused_rms_norm_backward", &rms_norm_backward),
      entry("aten::native_dropout", &native_dropout),
      entry("aten::nansum", &nansum),
  };
  add_rnn_cells(functions);
  return functions;
}

}  // namespace

std::optional<c10::KernelFunction> find_cpu_function(std::string_view op) {
  static const auto* const table = new std::vector<CpuFunction>(make_table());
  for (const CpuFunction& entry : *table) {
    if (entry.op == op) return entry.function;
  }
  return std::nullopt;
}

}  // namespace trellis::device
