#pragma once

#include <cstdint>

#include <c10/util/Exception.h>

#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"

namespace trellis::trainer {

/// Sizes of a run's batches, by the layout and the configured batch sizes.
struct BatchShape {
  std::int64_t micro_batch = 0, micro_batches = 0, sequence = 0, global_batch = 0;
  int dp = 1;

  static BatchShape of(const RunConfig& config) {
    return {config.data.micro_batch_size, config.num_microbatches(),
            config.model.encoder_seq_length, config.data.global_batch_size, config.dp()};
  }
  [[nodiscard]] std::int64_t per_rank() const { return global_batch / dp; }
  /// Samples consumed before a step of a run that continues at `resume`.
  [[nodiscard]] std::int64_t consumed_before(std::int64_t step, const ResumePoint& resume) const {
    return resume.consumed_samples + (step - resume.step) * global_batch;
  }
  void check(std::int64_t step, int dp_rank) const {
    TORCH_INTERNAL_ASSERT(step >= 0 && dp_rank >= 0 && dp_rank < dp, "step ", step,
                          ", data-parallel rank ", dp_rank, " of ", dp);
  }
};

/// Which tensors the micro-batches of a run have; with and without data.
struct BatchParts {
  bool loss_mask = false;  ///< of training batches
  bool position_ids = false, documents = false, next_tokens = false;
  std::int64_t sequences = 1;  ///< rows of a sample

  static BatchParts of(const RunConfig& config) {
    const DataSection& data = config.data;
    const bool packed = data.kind == DataKind::kAlignment && data.records.packing;
    return {data.eod_mask_loss || data.no_seqlen_plus_one_input_tokens,
            data.reset_position_ids || packed, packed, config.model.orpo && config.model.orpo->trl,
            sequences_per_sample(config.model)};
  }
};

/// The limit on a pass over held-out data of `available` global batches. Throws ConfigError when a
/// fraction leaves none.
[[nodiscard]] std::int64_t limited_batches(const std::optional<BatchCount>& limit,
                                           std::int64_t available, const std::string& key);

}  // namespace trellis::trainer
