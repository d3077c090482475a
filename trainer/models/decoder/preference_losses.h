#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/data/data_module.h"
#include "trainer/parallel_layers/loss_functions.h"

namespace trellis::trainer {

inline constexpr std::int64_t kIgnored = -100;  ///< label of a token without a loss

/// Loss of a micro-batch of preference pairs.
struct PreferenceLoss {
  at::Tensor loss;       ///< one number, the mean over the pairs that count
  at::Tensor log_probs;  ///< [2·b] of each sequence's labels, without a gradient
  at::Tensor metrics;    ///< preference_tags() of the mean over pairs, without a gradient
};

/// Odds-ratio preference optimization over pairs: logits [s, 2·b, v/TP], the chosen sequences
/// first. With p the mean log-probability of a sequence's labels and odds(p) = p − log(1 − eᵖ): NLL
/// − beta · mean over pairs of log sigmoid(odds(p_chosen) − odds(p_rejected)). NLL is the mean of
/// −p_chosen (NxDT, base_orpo.py). `trl` (TRL 0.24, orpo_trainer.py): it is the mean cross entropy
/// of every next token of the chosen sequences that is not padding (MicroBatch::next_tokens), and
/// entries of the vocabulary have the logits' dtype. Rewards are beta · p.
[[nodiscard]] PreferenceLoss odds_ratio_loss(const at::Tensor& logits, const MicroBatch& batch,
                                             const EntropyContext& context,
                                             const OrpoSection& orpo);

/// Direct preference optimization (TRL's sigmoid loss): with P the summed log-probability of a
/// sequence's labels and R that of the reference model, the mean over pairs of −log sigmoid(beta ·
/// ((P_chosen − P_rejected) − (R_chosen − R_rejected))). Rewards are beta · (P − R). Without
/// MicroBatch::reference_log_probs R is 0.
[[nodiscard]] PreferenceLoss direct_preference_loss(const at::Tensor& logits,
                                                    const MicroBatch& batch,
                                                    const EntropyContext& context,
                                                    const DpoSection& dpo);

}  // namespace trellis::trainer
