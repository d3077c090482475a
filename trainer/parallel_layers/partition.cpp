#include "trainer/parallel_layers/partition.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace trellis::trainer {

std::int64_t PartitionBlock::laid_out() const {
  std::int64_t total = 0;
  for (const RowRange& range : rows) total += range.count;
  return total;
}

std::int64_t PartitionBlock::end() const {
  std::int64_t last = 0;
  for (const RowRange& range : rows) last = std::max(last, range.end());
  return last;
}

Partition strided_partition(int dim, std::int64_t size, int stride) {
  Partition partition{dim, {}};
  if (dim < 0) return partition;
  const std::int64_t rows = size / stride;
  for (int block = 0; block < stride; ++block)
    partition.blocks.push_back({{{block * rows, rows}}, 1});
  return partition;
}

std::vector<RowRange> rows_of(const PartitionBlock& block, int rank, int ranks) {
  const std::int64_t part = block.laid_out() / ranks, begin = rank * part, end = begin + part;
  std::vector<RowRange> result;
  std::int64_t position = 0;
  for (const RowRange& range : block.rows) {
    const std::int64_t first = std::max(begin, position),
                       last = std::min(end, position + range.count);
    if (first < last)
      result.push_back(
          {range.is_padding() ? range.first : range.first + first - position, last - first});
    position += range.count;
  }
  return result;
}

namespace {

at::Tensor part_of(const at::Tensor& full, int dim, const RowRange& range) {
  if (!range.is_padding()) return full.narrow(dim, range.first, range.count);
  std::vector<std::int64_t> shape = full.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = range.count;
  return at::zeros(shape, full.options().requires_grad(false));
}

}  // namespace

at::Tensor shard_of(const at::Tensor& full, const Partition& partition, int rank, int ranks) {
  if (!partition.is_sharded()) return full;
  std::vector<at::Tensor> parts;
  for (const PartitionBlock& block : partition.blocks) {
    for (const RowRange& range : rows_of(block, rank, ranks))
      parts.push_back(part_of(full, partition.dim, range));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, partition.dim);
}

at::Tensor join_shards(const std::vector<at::Tensor>& shards, const Partition& partition) {
  if (!partition.is_sharded()) return shards.front();
  std::vector<std::int64_t> shape = shards.front().sizes().vec();
  std::int64_t& rows = shape[static_cast<std::size_t>(partition.dim)];
  rows = 0;
  for (const PartitionBlock& block : partition.blocks) rows = std::max(rows, block.end());
  at::Tensor full = at::empty(shape, shards.front().options().requires_grad(false));
  const int ranks = static_cast<int>(shards.size());
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t local = 0;
    for (const PartitionBlock& block : partition.blocks) {
      for (const RowRange& range : rows_of(block, rank, ranks)) {
        const at::Tensor part = shards[static_cast<std::size_t>(rank)].detach().narrow(
            partition.dim, local, range.count);
        if (!range.is_padding()) full.narrow(partition.dim, range.first, range.count).copy_(part);
        local += range.count;
      }
    }
  }
  return full;
}

}  // namespace trellis::trainer
