#include "trainer/checkpoint/layout/nxd_form.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/files/checkpoint/formats/nxd/stacked_experts.h"

namespace trellis::checkpoint {
namespace {

using trainer::Parameter;
using trainer::StateExtent;

std::int64_t rows_of_one(const Parameter& parameter) {
  return parameter.tensor.size(0) / parameter.experts.count;
}

/// Parts of stacked rows as boxes of [experts, columns, rows].
std::vector<ShardedPart> stacked_parts(const Parameter& parameter,
                                       const std::vector<ShardedPart>& parts) {
  const std::int64_t own_rows = rows_of_one(parameter), experts = parameter.experts.total;
  std::vector<ShardedPart> stacked;
  for (const ShardedPart& part : parts) {
    const Shape &shape = part.tensor.global_shape, &offset = part.tensor.global_offset;
    const std::int64_t all_rows = shape[0] / experts, columns = part.local.shape[1];
    for (std::int64_t row = 0; row < part.local.shape[0];) {
      const std::int64_t here = part.local.offset[0] + row, there = offset[0] + row;
      const std::int64_t count = std::min(part.local.shape[0] - row, own_rows - here % own_rows);
      ShardedPart& made = stacked.emplace_back(part);
      made.tensor.global_shape = {experts, shape[1], all_rows};
      made.tensor.global_offset = {there / all_rows, offset[1], there % all_rows};
      made.tensor.local_shape = {1, columns, count};
      made.local = {{here / own_rows, part.local.offset[1], here % own_rows},
                    made.tensor.local_shape};
      row += count;
    }
  }
  return stacked;
}

/// Whole experts of a rank's states, in the order of the ranks that hold the same ones.
struct ExpertShard {
  std::int64_t first = 0, count = 0;  ///< without padding
  std::int64_t padded = 0;
};

ExpertShard shard_of(const Parameter& parameter, const RankPlace& place) {
  const std::int64_t own = parameter.experts.count;
  if (!place.zero1) return {0, own, own};
  const std::int64_t shards = place.shards() / place.ep_size, share = (own + shards - 1) / shards,
                     first = std::min(own, place.edp_rank % shards * share);
  return {first, std::min(share, own - first), share};
}

void take_form(const Parameter& parameter, const RankPlace& place, LiveTensor& state) {
  const std::int64_t rows = rows_of_one(parameter);
  const ExpertShard shard = shard_of(parameter, place);
  const int copy = place.zero1 ? place.dp_rank - place.shard_rank() : place.copy_of(parameter);
  state.parts = stacked_parts(
      parameter, parts_of(parameter, {shard.first * rows, shard.count * rows}, place, copy,
                          dtype_of(state.values.scalar_type()), state_prefix(state.state)));
  state.values = place.zero1 ? at::empty({shard.padded, parameter.tensor.size(1), rows},
                                         state.values.options())
                             : state.values.view({shard.count, rows, -1}).transpose(1, 2);
  state.span = {shard.first, shard.count};
}

}  // namespace

LiveState in_nxd_form(LiveState live, const trainer::ParameterList& parameters,
                      const RankPlace& place) {
  for (LiveTensor& weight : live.model) {
    weight.stored_name = nxd::nxd_name(weight.parameter);
    const Parameter& parameter = parameters[static_cast<std::size_t>(weight.id)];
    if (!parameter.experts.is_stacked()) continue;
    weight.parts = stacked_parts(parameter, weight.parts);
    weight.values =
        weight.values.view({parameter.experts.count, rows_of_one(parameter), -1}).transpose(1, 2);
    weight.span = {0, parameter.experts.count};
  }
  for (LiveTensor& state : live.optimizer) {
    state.stored_name = nxd::nxd_name(state.parameter);
    const Parameter& parameter = parameters[static_cast<std::size_t>(state.id)];
    if (parameter.experts.is_stacked() && state.span.extent == StateExtent::kElements)
      take_form(parameter, place, state);
  }
  return live;
}

}  // namespace trellis::checkpoint
