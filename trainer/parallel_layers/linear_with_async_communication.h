#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Several linear layers on one input, their rows sharded over TP.
struct ColumnShards {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;  ///< one per weight, or none at all
  ParallelGroup tp;
  bool sequence_parallel = false;  ///< the input is [s/TP, b, h]
  at::ScalarType reduce_dtype = at::kFloat;
  /// Key/value rows that other ranks hold too: of each weight its last `replicated_rows[i]` rows.
  /// Empty: none.
  std::vector<std::int64_t> replicated_rows = {};
  ParallelGroup kv_shared = {};
};

/// Y_i = X · A_iᵀ + b_i: one [s, b, rows] per weight. With sequence parallelism X is gathered once
/// for all of them. The input's gradient is summed over TP once for all of them, next to the
/// products that make the weights' gradients; the gradient that reaches replicated rows is summed
/// over `kv_shared` first, so that every copy has the bits of the whole.
[[nodiscard]] std::vector<at::Tensor> linear_with_async_communication(const at::Tensor& input,
                                                                      const ColumnShards& layer);

}  // namespace trellis::trainer
