#pragma once

#include <vector>

#include "trainer/checkpoint/state/live_state.h"

namespace trellis::checkpoint {

/// A rank's weights with its part of the adapters in them, W + scale · B · A, summed in double on
/// the host, and without adapters. A layer's A and B are sharded as its weight is: the columns of a
/// row-parallel A, the rows of a column-parallel B with copies of key/value heads, the rows of an
/// embedding's A. No rank needs another.
///
///   "<layer>.lora_A.weight" [r, in], "<layer>.lora_B.weight_q" [out, r]  →  "<layer>.weight_q"
///   "….embed_tokens.lora_A.weight" [vocabulary, r], "….lora_B.weight" [h, r]  →  A · Bᵀ
[[nodiscard]] std::vector<LiveTensor> merged_weights(const std::vector<LiveTensor>& model,
                                                     double scale);

}  // namespace trellis::checkpoint
