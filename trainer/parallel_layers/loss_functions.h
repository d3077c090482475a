#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Cross entropy per token over logits whose vocabulary (last dimension) is sharded over TP: [.., v/TP], targets [..] → [..].
/// Computed in fp32 (fp64 for fp64 logits); the logits are not changed. REQUIRES: 0 ≤ target < v; padding must be masked by the caller.
at::Tensor parallel_cross_entropy(const at::Tensor& vocab_parallel_logits, const at::Tensor& target, const ParallelGroup& tp);

}  // namespace trellis::trainer
