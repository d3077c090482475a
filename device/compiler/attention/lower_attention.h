#pragma once

#include <optional>

#include "device/compiler/emit/hbm_view.h"
#include "device/compiler/emit/program_builder.h"

namespace trellis::device {

/// Dropout of the probabilities: each is kept with probability `keep`, and then counts `factor`
/// times. `kept` [batch, heads, lq, lk] of uint8: 1 where it was kept; entries above the diagonal
/// of causal attention are undefined.
struct AttentionDropout {
  double keep = 1, factor = 1;
  std::optional<HbmView> kept;  ///< forward: written when present; backward: read
};

/// out = softmax(scale · q kᵀ) v per (batch, head), never materialising the scores.
/// q, out [batch, heads, lq, d]; k, v [batch, key heads, lk, d]; logsumexp [batch, heads, lq]. Key
/// heads divide heads: query head h reads key head h / (heads / key heads). Any strides; 0
/// broadcasts an input. `causal`: query i sees keys 0..i.
struct Attention {
  HbmView q, k, v, out;
  std::optional<HbmView>
      logsumexp;  ///< natural logarithm of the softmax's denominator, of the scaled scores
  bool causal = false;
  double scale = 1;
  std::int64_t window =
      0;  ///< causal only: query i sees keys i − window + 1 … i; 0: all keys up to i
  std::optional<AttentionDropout> dropout = std::nullopt;  ///< without a window
  /// [batch, heads, lq, lk], added to the scaled scores; with neither a window nor dropout.
  std::optional<HbmView> mask = std::nullopt;
};

/// `out` and `logsumexp` are the forward pass's. grad_q is shaped as q. grad_k and grad_v are
/// shaped as k and v; the gradients of the query heads that share a key head are summed.
struct AttentionBackward {
  HbmView grad_out, q, k, v, out, logsumexp;
  HbmView grad_q, grad_k, grad_v;
  bool causal = false;
  double scale = 1;
  std::int64_t window = 0;  ///< as Attention's
  std::optional<AttentionDropout> dropout = std::nullopt;
  std::optional<HbmView> mask = std::nullopt;
};

/// Append the phases of the kernel. False, with nothing appended, when it has no lowering: d > 128,
/// scale ≤ 0, an SBUF too small for 512 queries and keys, or or a window shorter than the sequence
/// over other than causal squares of multiples of 512 or of which SBUF does not hold the keys and
/// 512 more. REQUIRES: no size is 0, window ≥ 0.
[[nodiscard]] bool lower_attention(ProgramBuilder& builder, std::uint32_t kernel,
                                   const Attention& attention);
[[nodiscard]] bool lower_attention_backward(ProgramBuilder& builder, std::uint32_t kernel,
                                            const AttentionBackward& attention);

}  // namespace trellis::device
