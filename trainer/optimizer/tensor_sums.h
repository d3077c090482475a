#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/optimizer/update_rule.h"

namespace trellis::trainer {

/// Sums one tensor per slot over the ranks that hold other parts of the parameter, all slots in one
/// communication per group. A parameter that every TP rank holds whole is not summed over TP.
void sum_over_parameters(const ShardLayout& layout, std::vector<at::Tensor>& parts);
/// The same where a tensor has one number per column: over the ranks that hold other rows.
void sum_over_rows(const ShardLayout& layout, std::vector<at::Tensor>& parts);
/// The same where a tensor has one number per row: over the ranks that hold other columns.
void sum_over_columns(const ShardLayout& layout, std::vector<at::Tensor>& parts);

/// Σ x² over a slot, each un-sharded row counted once over all ranks; 0-dimensional.
[[nodiscard]] at::Tensor sum_of_squares(const at::Tensor& shard, const ShardSlot& slot);
/// `per_row` ([rows] or [rows, …]) with each row weighted by 1/copies.
[[nodiscard]] at::Tensor weighted_rows(const at::Tensor& per_row, const ShardSlot& slot);

/// The rows of a slot that are no padding: [rows, row_elements], a view of the flat shard.
[[nodiscard]] at::Tensor rows_of(const at::Tensor& shard, const ShardSlot& slot);

}  // namespace trellis::trainer
