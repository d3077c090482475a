#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

struct CrossEntropyOptions {
  /// As torch.nn.CrossEntropyLoss: the target's probability is 1 − ε + ε/K, every other one ε/K, K
  /// being the un-sharded vocabulary. NxD and Megatron give each other entry α/(K − 1); that is ε =
  /// α·K/(K − 1).
  double label_smoothing = 0;
  /// Type of the numbers per entry of the vocabulary: exp(logit − maximum) and what backward keeps;
  /// none: fp32 (fp64 for fp64 logits), as the numbers per token always are.
  std::optional<at::ScalarType> entry_dtype = {};
  std::int64_t ignore_index = -100;  ///< such targets have loss 0 and gradient 0; whoever averages
                                     ///< leaves them out of the count
};

/// How a model's cross entropies are computed.
struct EntropyContext {
  ParallelGroup tp;
  std::optional<at::ScalarType> entry_dtype = {};  ///< as in CrossEntropyOptions
  ParallelGroup context = {};  ///< whose ranks hold the other parts of the sequences
};

/// Cross entropy per token over logits whose vocabulary (last dimension) is sharded over TP: [..,
/// v/TP], targets [..] → [..]. Computed in fp32 (fp64 for fp64 logits); the logits are not changed.
/// REQUIRES: target is ignore_index or 0 ≤ target < v. Throws ConfigError unless 0 ≤
/// label_smoothing < 1.
at::Tensor parallel_cross_entropy(const at::Tensor& vocab_parallel_logits, const at::Tensor& target,
                                  const ParallelGroup& tp, const CrossEntropyOptions& options = {});

/// Log-probability of each next token: logits [b, s, v/TP] and the tokens [b, s] → [b, s − 1],
/// entry t for token t + 1 given those up to t. Differentiable unless `inference`. Tokens of −100
/// (prompt, padding) give 0.
at::Tensor from_parallel_logits_to_logprobs(const at::Tensor& vocab_parallel_logits,
                                            const at::Tensor& tokens, const ParallelGroup& tp,
                                            bool inference = false);

}  // namespace trellis::trainer
