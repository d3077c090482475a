#include "trainer/optimizer/tensor_sums.h"

#include <functional>

#include <ATen/ops/cat.h>

#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

using Selection = std::function<bool(const Parameter&)>;

bool is_split(const Parameter& parameter) { return parameter.partition.is_sharded(); }

bool has_split_rows(const Parameter& parameter) { return parameter.partition.dim == 0; }

bool has_split_columns(const Parameter& parameter) { return parameter.partition.dim > 0; }

bool any(const Parameter&) { return true; }

bool is_stacked(const Parameter& parameter) { return parameter.experts.is_stacked(); }

void sum_over_group(const ShardLayout& layout, std::vector<at::Tensor>& parts,
                    const ParallelGroup& group, const Selection& selected) {
  if (group.size == 1) return;
  std::vector<at::Tensor> flat;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined() && selected(*layout.slots[i].parameter))
      flat.push_back(parts[i].reshape(-1));
  }
  if (flat.empty()) return;
  const at::Tensor sums = all_reduce(at::cat(flat), group);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined() || !selected(*layout.slots[i].parameter)) continue;
    const std::int64_t count = parts[i].numel();
    parts[i] = sums.narrow(0, offset, count).view(parts[i].sizes());
    offset += count;
  }
}

}  // namespace

void sum_over_parameters(const ShardLayout& layout, std::vector<at::Tensor>& parts) {
  sum_over_group(layout, parts, layout.tensor, is_split);
  sum_over_group(layout, parts, layout.sharding, any);
  sum_over_group(layout, parts, layout.expert, is_stacked);
}

void sum_over_rows(const ShardLayout& layout, std::vector<at::Tensor>& parts) {
  sum_over_group(layout, parts, layout.tensor, has_split_rows);
  sum_over_group(layout, parts, layout.sharding, any);
  sum_over_group(layout, parts, layout.expert, is_stacked);
}

void sum_over_columns(const ShardLayout& layout, std::vector<at::Tensor>& parts) {
  sum_over_group(layout, parts, layout.tensor, has_split_columns);
}

at::Tensor weighted_rows(const at::Tensor& per_row, const ShardSlot& slot) {
  if (!slot.row_weights.defined()) return per_row;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(per_row.dim()), 1);
  shape[0] = slot.rows;
  return per_row.mul(slot.row_weights.to(per_row.scalar_type()).view(shape));
}

at::Tensor sum_of_squares(const at::Tensor& shard, const ShardSlot& slot) {
  return weighted_rows(rows_of(shard, slot).square(), slot).sum();
}

at::Tensor rows_of(const at::Tensor& shard, const ShardSlot& slot) {
  return shard.narrow(0, slot.offset, slot.valid_elements()).view({slot.rows, slot.row_elements});
}

}  // namespace trellis::trainer
