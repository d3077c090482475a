#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace trellis::device {

/// The implementation of scaled_dot_product_attention on `neuron`: the fused one wherever the
/// CPU would take its flash kernel (that is what runs here), the math decomposition elsewhere. An
/// at::SDPBackend.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& attn_mask,
                              double dropout_p, bool is_causal, std::optional<double> scale,
                              bool enable_gqa);

}  // namespace trellis::device
