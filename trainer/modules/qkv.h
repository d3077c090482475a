#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/layers.h"

namespace trellis::trainer {

struct AttentionShape {
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  [[nodiscard]] std::int64_t head_dim() const { return hidden_size / num_heads; }
};

/// Queries, keys and values from one input: three weights (q_proj, k_proj, v_proj) sharded by heads, one gathered sequence.
class GQAQKVColumnParallelLinear {
 public:
  /// Throws ConfigError when TP does not divide the key/value heads.
  GQAQKVColumnParallelLinear(const ModuleContext& context, const std::string& path, const AttentionShape& shape, double init_std);
  struct Output {
    at::Tensor query;       ///< [s, b, num_heads/TP, d]
    at::Tensor key, value;  ///< [s, b, num_kv_heads/TP, d]
  };
  [[nodiscard]] Output forward(const at::Tensor& input) const;

 private:
  ColumnParallelLinear projections_;
  std::int64_t head_dim_;
};

}  // namespace trellis::trainer
