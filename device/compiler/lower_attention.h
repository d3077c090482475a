#pragma once

#include <optional>

#include "device/compiler/hbm_view.h"
#include "device/compiler/program_builder.h"

namespace trellis::device {

/// out = softmax(scale · q kᵀ) v per (batch, head), never materialising the scores.
/// q, out [batch, heads, lq, d]; k, v [batch, key heads, lk, d]; logsumexp [batch, heads, lq]. Key heads divide heads: query head h reads
/// key head h / (heads / key heads). Any strides; 0 broadcasts an input. `causal`: query i sees keys 0..i.
struct Attention {
  HbmView q, k, v, out;
  std::optional<HbmView> logsumexp;  ///< natural logarithm of the softmax's denominator, of the scaled scores
  bool causal = false;
  double scale = 1;
};

/// `out` and `logsumexp` are the forward pass's. grad_q is shaped as q. grad_k and grad_v are shaped as k and v; the gradients of the query
/// heads that share a key head are summed.
struct AttentionBackward {
  HbmView grad_out, q, k, v, out, logsumexp;
  HbmView grad_q, grad_k, grad_v;
  bool causal = false;
  double scale = 1;
};

/// Append the phases of the kernel. False, with nothing appended, when it has no lowering: d > 128, scale ≤ 0, or an SBUF too small for 512
/// queries and keys. REQUIRES: no size is 0.
[[nodiscard]] bool lower_attention(ProgramBuilder& builder, std::uint32_t kernel, const Attention& attention);
[[nodiscard]] bool lower_attention_backward(ProgramBuilder& builder, std::uint32_t kernel, const AttentionBackward& attention);

}  // namespace trellis::device
