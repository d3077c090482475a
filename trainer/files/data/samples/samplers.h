#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace trellis::trainer {

/// Sizes that every sampler needs. check() throws ConfigError: no samples, sizes that are not
/// positive, a global batch that micro-batches and data-parallel ranks do not divide.
struct SamplerShape {
  std::int64_t total_samples = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 1;
  int data_parallel_size = 1;
  bool drop_last = true;
  bool pad_samples_to_global_batch_size = false;

  void check() const;
  void check_rank(
      int data_parallel_rank) const;  ///< throws ConfigError unless 0 ≤ rank < data_parallel_size
  [[nodiscard]] std::int64_t per_rank() const { return global_batch_size / data_parallel_size; }
};

/// NeMo's MegatronPretrainingBatchSampler (`single`), and what a distributed sampler gives for
/// Hugging Face data. Batch b of a pass takes consecutive samples; rank r gets the places r, r +
/// DP, r + 2·DP, … of it. Returns nothing after the pass's last batch. Without drop_last a pass
/// ends with a shorter batch, filled up with −1 when `pad_samples_to_global_batch_size`.
class SequentialSampler {
 public:
  explicit SequentialSampler(const SamplerShape& shape);
  [[nodiscard]] std::int64_t num_batches(
      std::int64_t consumed_samples = 0) const;  ///< left in the pass
  /// Batch `batch` counted from `consumed_samples`.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t batch, int data_parallel_rank,
                                                  std::int64_t consumed_samples = 0) const;

 private:
  SamplerShape shape_;
};

/// The order of an epoch is torch.randperm's, seeded with seed + epoch. Safe for several threads.
class EpochOrders {
 public:
  using Order = std::shared_ptr<const std::vector<std::int64_t>>;
  explicit EpochOrders(std::uint64_t seed) : seed_(seed) {}
  /// The order of `count` samples in an epoch. `count` is the same in every epoch.
  [[nodiscard]] Order of(std::int64_t epoch, std::int64_t count) const;

 private:
  std::uint64_t seed_;
  mutable std::mutex mutex_;
  mutable std::int64_t kept_epoch_ = -1;  ///< one is kept: it is as long as the data
  mutable Order kept_;
};

/// NeMo's MegatronPretrainingRandomBatchSampler (`cyclic`). Each rank owns a bucket of (total /
/// (mbs · DP)) · mbs samples and draws it in the order of torch.randperm, seeded with seed + epoch;
/// NxDT's seed is always 0. An epoch is total − total mod gbs samples.
class RandomSampler {
 public:
  /// Throws ConfigError also for drop_last false with mbs · DP > 1, and for padding.
  explicit RandomSampler(const SamplerShape& shape, std::uint64_t seed = 0);
  /// The rank's share of the global batch that starts after `consumed_samples`, which must be whole
  /// micro-batches of all ranks.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t consumed_samples,
                                                  int data_parallel_rank) const;

 private:
  SamplerShape shape_;
  std::int64_t bucket_;
  EpochOrders orders_;  ///< of a bucket
};

/// torch's DistributedSampler(shuffle=True, drop_last=True), as NxDT's alignment data use it, in
/// global batches: an epoch is total − total mod gbs samples in the order of torch.randperm, seeded
/// with seed + epoch; rank r gets the places r, r + DP, r + 2·DP, … of a batch. The order does not
/// depend on the layout.
class ShuffledSampler {
 public:
  /// Throws ConfigError when there is no global batch of samples.
  explicit ShuffledSampler(const SamplerShape& shape, std::uint64_t seed = 0);
  /// The rank's share of the global batch that starts after `consumed_samples`. After another
  /// global batch size an epoch may end with less than a batch: the next one starts instead.
  [[nodiscard]] std::vector<std::int64_t> indices(std::int64_t consumed_samples,
                                                  int data_parallel_rank) const;

 private:
  SamplerShape shape_;
  EpochOrders orders_;
};

/// torch.randperm(count, generator=torch.Generator().manual_seed(seed)) on the CPU.
[[nodiscard]] std::vector<std::int64_t> torch_randperm(std::int64_t count, std::uint64_t seed);

}  // namespace trellis::trainer
