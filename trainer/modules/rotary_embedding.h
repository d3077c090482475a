#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Rotary position embedding in the rotate-half convention: the pair (x_i, x_{i+d/2}) at position p turns by p · theta^(−2i/d).
/// The tables are computed in fp64 once and kept in the run's type.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const ModuleContext& context, std::int64_t head_dim, std::int64_t sequence_length, double theta);
  /// [s, b, heads, head_dim] → the same. REQUIRES: s = sequence_length.
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const;

 private:
  at::Tensor cos_;  ///< [s, 1, 1, d]
  at::Tensor sin_;  ///< [s, 1, 1, d/2]
};

}  // namespace trellis::trainer
