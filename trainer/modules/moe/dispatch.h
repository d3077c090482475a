#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Where the picks of T tokens are put: slots in the order of experts. With a capacity every expert
/// has `capacity` slots, the first of which are filled in the order of tokens, and further picks
/// are dropped; without one (dropless) an expert has as many slots as picks.
///
///   T 3, k 2, experts {0 1} {1 2} {1 0}, capacity 2
///   slots       expert 0: 0 2     expert 1: 0 1 (2 is dropped)     expert 2: 1 –
struct DispatchPlan {
  at::Tensor slot_pick;  ///< [slots]: token · k + i of the pick in a slot; T · k in an empty slot
  at::Tensor pick_slot;  ///< [T · k]: slot of a pick; `slots` when it was dropped
  at::Tensor assigned;   ///< [experts]: picks
  at::Tensor kept;       ///< [experts]: picks that have a slot
  std::int64_t tokens = 0, top_k = 0, slots = 0;
  std::int64_t capacity = 0;  ///< 0: dropless
};

/// Slots of an expert for T tokens of a rank: min(T, ceil(T · k · factor / experts)).
[[nodiscard]] std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, double factor,
                                           std::int64_t experts);

/// `experts` [T, k]. `capacity` 0: dropless.
[[nodiscard]] DispatchPlan plan_dispatch(const at::Tensor& experts, std::int64_t num_experts,
                                         std::int64_t capacity);

/// `rows` rounded up to whole blocks of `block` rows; 0 for 0.
[[nodiscard]] std::int64_t rows_of_blocks(std::int64_t rows, std::int64_t block);
/// Rounds the slots of each expert up to whole blocks; the last slots of an expert stay empty.
/// `plan`: without a capacity; its experts have `counts` slots. `experts`: as given to
/// plan_dispatch().
[[nodiscard]] DispatchPlan in_blocks(DispatchPlan plan, const at::Tensor& experts,
                                     const std::vector<std::int64_t>& counts, std::int64_t block);

/// [T, h] → [slots, h]; empty slots are zero.
[[nodiscard]] at::Tensor to_slots(const at::Tensor& tokens, const DispatchPlan& plan);
/// [slots, h] → [k, T, h]: the first picks of all tokens, then the second ones …; what was dropped
/// is zero.
[[nodiscard]] at::Tensor from_slots(const at::Tensor& slots, const DispatchPlan& plan);

/// Rows of each member's tensor for each other member. Data: the receiving side's numbers are the
/// sending side's.
struct RowExchange {
  std::vector<std::int64_t> sent, received;  ///< rows, by member
};
/// All-to-all of rows; backward sends the gradients back. `exchange` with no numbers: equal parts.
[[nodiscard]] at::Tensor exchange_rows(const at::Tensor& rows, const ParallelGroup& group,
                                       const RowExchange& exchange = {});

/// input.index_select(0, index), whose backward gathers by the inverse. `inverse` [n · copies] has
/// for row i of the input the rows of the output that show it, or output.size(0) for none; `index`
/// has input.size(0) where the output is zero.
[[nodiscard]] at::Tensor select_rows(const at::Tensor& input, const at::Tensor& index,
                                     const at::Tensor& inverse, std::int64_t copies = 1);

}  // namespace trellis::trainer
