#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace trellis::trainer {

/// Consecutive rows of a dimension: first … first + count − 1; or rows of zeros that the un-sharded
/// weight does not have.
struct RowRange {
  std::int64_t first = 0, count = 0;
  static RowRange padding(std::int64_t count) { return {-1, count}; }
  [[nodiscard]] bool is_padding() const { return first < 0; }
  [[nodiscard]] std::int64_t end() const { return is_padding() ? 0 : first + count; }
  bool operator==(const RowRange&) const = default;
};

/// One block of a sharded dimension. The un-sharded rows are laid out in the order of `rows`, then
/// cut into one equal part per TP rank.
struct PartitionBlock {
  std::vector<RowRange> rows;
  int copies = 1;  ///< TP ranks that hold each of its rows: more than one for key/value heads that
                   ///< are replicated
  [[nodiscard]] std::int64_t laid_out() const;  ///< rows after replication and padding
  [[nodiscard]] std::int64_t end() const;       ///< after its last un-sharded row
  bool operator==(const PartitionBlock&) const = default;
};

/// How a weight is spread over TP along one dimension. Several blocks are weights fused into one:
/// each is cut for itself and a rank holds its parts one after the other. Gate and up (rows 0–3 and
/// 4–7) over two ranks:
///
///   blocks   gate {0–3}  up {4–7}       rank 0   0 1 | 4 5       rank 1   2 3 | 6 7
struct Partition {
  int dim = -1;  ///< −1: every rank holds the whole weight
  std::vector<PartitionBlock> blocks;
  [[nodiscard]] bool is_sharded() const { return dim >= 0; }
  bool operator==(const Partition&) const = default;
};

/// `stride` equal blocks of a dimension of `size` rows; `dim` −1: not sharded.
[[nodiscard]] Partition strided_partition(int dim, std::int64_t size, int stride);

/// The un-sharded rows that a rank holds of a block, in its order. REQUIRES: ranks divides
/// laid_out().
[[nodiscard]] std::vector<RowRange> rows_of(const PartitionBlock& block, int rank, int ranks);

/// The shard of `rank`.
[[nodiscard]] at::Tensor shard_of(const at::Tensor& full, const Partition& partition, int rank,
                                  int ranks);
/// The inverse: the un-sharded, un-replicated weight from the shards of all ranks in rank order.
[[nodiscard]] at::Tensor join_shards(const std::vector<at::Tensor>& shards,
                                     const Partition& partition);

}  // namespace trellis::trainer
