#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/ring_plan.h"

namespace trellis::trainer {

/// A ring of context-parallel ranks, the same for all layers.
struct Ring {
  ParallelGroup group;
  RingPlan plan;
};

/// softmax(Q·Kᵀ/sqrt(d)) · V over a sequence of which each rank of the ring holds a part: query
/// [s, b, n, d], key and value [s, b, n_kv, d], n a multiple of n_kv → [s, b, n, d]. Each block is
/// one fused attention, and results are merged by their log-sum-exp (Liu et al., "Ring Attention
/// with Blockwise Transformers", 2023). While a block is computed the next one travels. Backward is
/// a second ring: gradients of keys and values travel with them in fp32 (fp64 for fp64) and return
/// to their owner.
/// `masks`: per step of the plan, added to the scores, [s, s] or [b, 1, s, s]; undefined: the plan
/// says all. Rows of a block that a query may not read at all hold a large negative number, no
/// infinity.
[[nodiscard]] at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::vector<at::Tensor>& masks,
                                        const std::shared_ptr<const Ring>& ring);

}  // namespace trellis::trainer
