#pragma once

#include <array>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

/// softmax(Q·Kᵀ/sqrt(d) + mask) · V as one operation of the device: query [b, n, s, d], key and
/// value [b, n_kv, s', d], n a multiple of n_kv.
struct FusedAttention {
  at::Tensor query, key, value;
  at::Tensor mask;  ///< added to the scores, [s, s'] or [b, 1, s, s']; undefined: none
  /// Row i of the queries reads keys up to row i. With a mask it says nothing new, but a kernel
  /// knows it before it has read the mask: it leaves out what lies above the diagonal.
  bool causal = false;
};

/// True if `device` has the operation. LibTorch's public one takes a mask or `causal`, not both.
[[nodiscard]] bool has_fused_attention(const at::Device& device);

/// Output and log-sum-exp [b, n, s].
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> fused_attention(const FusedAttention& in);

/// Gradients of query, key and value. `out` and `logsumexp` may be those of all blocks of keys
/// together: so are the probabilities then, and no block needs to know the others.
[[nodiscard]] std::array<at::Tensor, 3> fused_attention_backward(const FusedAttention& in,
                                                                 const at::Tensor& grad,
                                                                 const at::Tensor& out,
                                                                 const at::Tensor& logsumexp);

}  // namespace trellis::trainer
