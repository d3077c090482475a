#include "trainer/checkpoint/state/live_state.h"

#include <map>
#include <set>

#include "trainer/checkpoint/state/torch_dtype.h"

namespace trellis::checkpoint {
namespace {

using trainer::NeuronZero1Optimizer;
using trainer::Parameter;
using trainer::ShardSlot;
using trainer::StateExtent;

/// As it is stored: NxD keeps a shard in the parameter's shape, with other rows.
at::Tensor in_stored_shape(const NeuronZero1Optimizer::ParameterState& state) {
  if (state.extent != StateExtent::kElements) return state.values;
  std::vector<std::int64_t> shape = state.slot.parameter->tensor.sizes().vec();
  shape[0] = state.slot.elements / state.slot.row_elements;
  return state.values.view(shape);
}

}  // namespace

RankPlace place_of(const trainer::ParallelState& parallel, bool zero1) {
  return {parallel.get_tensor_model_parallel_rank(),
          parallel.get_tensor_model_parallel_size(),
          parallel.get_zero1_sharding_group().rank,
          parallel.get_zero1_sharding_group().size,
          zero1,
          parallel.get_expert_model_parallel_rank(),
          parallel.get_expert_model_parallel_size(),
          parallel.get_expert_data_parallel_group().rank,
          parallel.get_fsdp_replica_group().size};
}

std::vector<LiveTensor> live_weights(const trainer::ParameterList& parameters,
                                     const RankPlace& place) {
  std::vector<LiveTensor> weights;
  for (const Parameter& parameter : parameters) {
    const at::Tensor values = parameter.tensor.detach();
    const ParameterSpan all{0, values.size(0), StateExtent::kElements};
    weights.push_back({parameter.name, std::ssize(weights), "", values,
                       parts_of(parameter, all, place, place.copy_of(parameter),
                                dtype_of(values.scalar_type()), ""),
                       all, parameter.adapter, parameter.experts.is_stacked()});
  }
  return weights;
}

LiveState live_state(const trainer::ParameterList& parameters,
                     const NeuronZero1Optimizer& optimizer,
                     const trainer::ParallelState& parallel) {
  const RankPlace place = place_of(parallel, optimizer.is_sharded());
  LiveState live{live_weights(parameters, place), {}};
  std::map<const Parameter*, std::int64_t> ids;
  for (const Parameter& parameter : parameters) ids.emplace(&parameter, std::ssize(ids));
  optimizer.for_each_parameter_state([&](const NeuronZero1Optimizer::ParameterState& state) {
    const Parameter& parameter = *state.slot.parameter;
    const ParameterSpan span{state.slot.first_row, state.slot.rows, state.extent};
    const bool of_rows =
        state.extent == StateExtent::kElements || state.extent == StateExtent::kRows;
    const bool split = place.zero1 && of_rows;
    // All ranks have the sums over a whole tensor, which other ranks' experts are part of.
    const int copy = split     ? place.dp_rank - place.shard_rank()
                     : of_rows ? place.copy_of(parameter)
                               : place.dp_rank;
    live.optimizer.push_back(
        {parameter.name, ids.at(&parameter), state.name, in_stored_shape(state),
         parts_of(parameter, span, place, copy, dtype_of(state.values.scalar_type()),
                  state_prefix(state.name)),
         span, parameter.adapter, of_rows && parameter.experts.is_stacked()});
  });
  return live;
}

LiveState trained_part(const trainer::ParameterList& parameters, LiveState live) {
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.requires_grad()) names.insert(parameter.name);
  }
  for (std::vector<LiveTensor>* tensors : {&live.model, &live.optimizer})
    std::erase_if(*tensors,
                  [&](const LiveTensor& tensor) { return !names.contains(tensor.parameter); });
  return live;
}

}  // namespace trellis::checkpoint
