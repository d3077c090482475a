#pragma once

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

/// Causal attention with scale 1/sqrt(d): query [s, b, n, d], key and value [s, b, n_kv, d], n a multiple of n_kv → [s, b, n·d].
/// Query head i attends with key/value head i / (n / n_kv). One fused operation, so that a device may run it as flash attention.
at::Tensor core_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

}  // namespace trellis::trainer
