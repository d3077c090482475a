#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// One micro-batch of one data-parallel rank, on the CPU. b = micro_batch_size, s = encoder_seq_length.
struct MicroBatch {
  at::Tensor input_ids;  ///< [b, s] int64
  at::Tensor labels;     ///< [b, s] int64, input_ids shifted left by one
};

/// Source of training samples; the order is a function of (data, seed, global batch size) and independent of the layout.
class DataModule {
 public:
  virtual ~DataModule() = default;
  /// Samples of step `step` (from 0) for data-parallel rank `dp_rank`, split into micro-batches, in order.
  [[nodiscard]] virtual std::vector<MicroBatch> micro_batches(std::int64_t step, int dp_rank) const = 0;
  [[nodiscard]] virtual std::int64_t num_tokens() const = 0;
  [[nodiscard]] virtual std::string description() const = 0;
};

/// Byte-level tokens of text files. Throws ConfigError when the path is missing, empty or too short for one global batch.
[[nodiscard]] std::shared_ptr<const DataModule> make_data_module(const RunConfig& config);
/// Zeros of the right shape: for shape-only runs, which read no data.
[[nodiscard]] std::shared_ptr<const DataModule> make_empty_data_module(const RunConfig& config);

}  // namespace trellis::trainer
