#include "trainer/checkpoint/state/gathered_states.h"

#include <ATen/ops/empty.h>

#include "trainer/checkpoint/state/torch_dtype.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::checkpoint {

using trainer::ParallelGroup;
using trainer::Parameter;
using trainer::StateExtent;

at::Tensor gather_shards(const at::Tensor& shard, const ParallelGroup& group) {
  const at::Tensor whole = trainer::gather_to_first(shard, group);
  return whole.defined() ? whole.cpu() : whole;
}

at::Tensor plan_gather(const at::Tensor& shard, const ParallelGroup& group) {
  if (group.rank != 0) return {};
  Shape shape = shard.sizes().vec();
  shape.front() *= group.size;
  return at::empty(shape, at::TensorOptions(at::kMeta).dtype(shard.scalar_type()));
}

bool is_first_of_states(const trainer::ParallelState& parallel) {
  const bool has_experts = parallel.get_expert_model_parallel_size() > 1;
  return parallel.get_fsdp_sharding_group(has_experts).rank == 0;
}

std::vector<LiveTensor> gathered_states(const trainer::ParameterList& parameters,
                                        const std::vector<LiveTensor>& states,
                                        const trainer::ParallelState& parallel,
                                        const GatherShards& gather) {
  const RankPlace place = place_of(parallel, /*zero1=*/false);
  std::vector<const Parameter*> by_id;
  for (const Parameter& parameter : parameters) by_id.push_back(&parameter);
  std::vector<LiveTensor> whole;
  for (const LiveTensor& state : states) {
    const Parameter& parameter = *by_id.at(static_cast<std::size_t>(state.id));
    const std::int64_t rows = parameter.tensor.size(0);
    const bool of_rows =
        state.span.extent == StateExtent::kElements || state.span.extent == StateExtent::kRows;
    LiveTensor gathered = state;
    if (of_rows) {
      gathered.values =
          gather(state.values, parallel.get_fsdp_sharding_group(parameter.experts.is_stacked()));
      if (gathered.values.defined()) gathered.values = gathered.values.narrow(0, 0, rows);
    } else if (parallel.get_fsdp_sharding_group().rank != 0) {
      continue;  // all ranks have the same
    }
    if (!gathered.values.defined()) continue;
    gathered.span = {0, rows, state.span.extent};
    gathered.parts = parts_of(parameter, gathered.span, place, /*dp_copy=*/0,
                              dtype_of(state.values.scalar_type()), state_prefix(state.state));
    whole.push_back(std::move(gathered));
  }
  return whole;
}

}  // namespace trellis::checkpoint
