#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// One micro-batch of one data-parallel rank, on the CPU. b = micro_batch_size, s =
/// encoder_seq_length. The tensors are shared: read only. Preference pairs
/// (model_alignment_strategy.dpo, orpo): 2·b rows, the chosen sequences and then the rejected ones,
/// and `places` of b pairs.
struct MicroBatch {
  at::Tensor input_ids;       ///< [b, s] int64
  at::Tensor labels;          ///< [b, s] int64, input_ids shifted left by one; −100: no loss there
  at::Tensor loss_mask = {};  ///< [b, s] float: the weight of each label; undefined: 1 everywhere
  at::Tensor position_ids = {};  ///< [b, s] int64; undefined: 0 … s − 1
  /// [b, s] int64: a token attends only to earlier tokens with its number. Packed documents: 1,
  /// 2, 3 …; padding: 0. So Hugging Face's mask of ones and zeros is the case of one document.
  /// Undefined: one document.
  at::Tensor attention_mask = {};
  /// [b] the place of each row in its global batch, 0 … global_batch_size − 1: what a row is
  /// whatever the layout. Text keeps rows of a rank together; Megatron and Hugging Face data deal
  /// them out, so that rank r of DP has places r, r + DP, r + 2·DP, …
  std::vector<std::int64_t> places = {};
  // Encoders. An attention mask of theirs is Hugging Face's: 0 where no token may look.
  at::Tensor token_type_ids = {};        ///< bert: [b, s] int64; undefined: type 0 everywhere
  at::Tensor next_sentence_labels = {};  ///< bert: [b] int64
  at::Tensor pixel_values = {};          ///< vit: [b, channels, height, width] float, in place of
                                         ///< input_ids; its labels are [b, 1]
  // Preference pairs.
  /// [2·b, s] int64: labels of all tokens but padding, the prompt's too; only for
  /// model_alignment_strategy.orpo.implementation trl
  at::Tensor next_tokens = {};
  /// [2·b] double, model_alignment_strategy.dpo: the reference model's log-probability of each
  /// row's labels; the trainer adds it
  at::Tensor reference_log_probs = {};
  /// [b] numbers of the samples in their split, from 0; −1: the row only fills the batch
  std::vector<std::int64_t> samples = {};
};

enum class Split { kTrain, kValidation, kTest };
[[nodiscard]] const char* name_of(Split split);  ///< train, validation, test

/// Where a resumed run continues: step `step` starts with sample `consumed_samples` of the training
/// order. They are independent, because the global batch size may have been another one before.
struct ResumePoint {
  std::int64_t step = 0;
  std::int64_t consumed_samples = 0;
};

/// Source of samples. Everything is a pure function of its arguments and of (data, seed, global
/// batch size, resume point): ranks may ask in any order, from any thread, and the samples of a
/// step do not depend on the layout (except for `cyclic`, whose epochs depend on DP).
class DataModule {
 public:
  virtual ~DataModule() = default;
  /// Training samples of step `step` (from 0) for data-parallel rank `dp_rank`, split into
  /// micro-batches, in order.
  [[nodiscard]] virtual std::vector<MicroBatch> micro_batches(std::int64_t step,
                                                              int dp_rank) const = 0;
  /// Global batches of one pass over held-out data, limit_val_batches and limit_test_batches
  /// applied; 0: there is none.
  [[nodiscard]] virtual std::int64_t num_evaluation_batches(Split) const { return 0; }
  /// Micro-batches of global batch `batch` (0 … num_evaluation_batches − 1) of a pass over held-out
  /// data. Every pass starts at the first sample. A last, incomplete batch is filled up with rows
  /// whose loss_mask is 0 (validation_drop_last: false).
  [[nodiscard]] virtual std::vector<MicroBatch> evaluation_batches(Split split, std::int64_t batch,
                                                                   int dp_rank) const;
  [[nodiscard]] virtual std::int64_t num_tokens() const = 0;
  /// Preference pairs: how many a split has; 0 for other data.
  [[nodiscard]] virtual std::int64_t num_pairs(Split) const { return 0; }
  /// Pairs first … first + global_batch_size − 1 in the order of the file, as a global batch; what
  /// is past the end only fills it.
  [[nodiscard]] virtual std::vector<MicroBatch> pairs_in_order(Split split, std::int64_t first,
                                                               int dp_rank) const;
  /// The place of a pair in its file, for people.
  [[nodiscard]] virtual std::string place_of_pair(Split, std::int64_t) const { return ""; }
  [[nodiscard]] virtual std::string description() const = 0;
};

}  // namespace trellis::trainer
