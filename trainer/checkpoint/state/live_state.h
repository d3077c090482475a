#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/checkpoint/state/parameter_parts.h"
#include "trainer/files/checkpoint/sharding/sharded_tensor.h"
#include "trainer/files/checkpoint/sharding/state_keys.h"
#include "trainer/optimizer/zero_redundancy_optimizer.h"
#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::checkpoint {

/// A tensor of a rank's training, with what it is in the layout-independent checkpoint.
struct LiveTensor {
  std::string parameter;  ///< name
  std::int64_t id = 0;    ///< of the parameter on this rank, in its order
  std::string state;      ///< of the optimizer; "": the weight itself
  at::Tensor values;      ///< shares memory with training; its shape is the stored one
  std::vector<ShardedPart> parts;
  ParameterSpan span = {};       ///< of a state
  bool optional = false;         ///< an adapter: a checkpoint of the model without it may be loaded
  bool of_experts = false;       ///< another one on each rank of an EP group
  std::string stored_name = {};  ///< of the parameter in files; "": its own
  [[nodiscard]] const std::string& name_in_file() const {
    return stored_name.empty() ? parameter : stored_name;
  }
};

/// Weights and optimizer states of a rank, in a fixed order.
struct LiveState {
  std::vector<LiveTensor> model, optimizer;
};

/// The weights alone.
[[nodiscard]] std::vector<LiveTensor> live_weights(const trainer::ParameterList& parameters,
                                                   const RankPlace& place);
[[nodiscard]] RankPlace place_of(const trainer::ParallelState& parallel, bool zero1);
[[nodiscard]] LiveState live_state(const trainer::ParameterList& parameters,
                                   const trainer::NeuronZero1Optimizer& optimizer,
                                   const trainer::ParallelState& parallel);
/// The part of `live` that is trained: with adapters these, whole modules and biases, and their
/// states.
[[nodiscard]] LiveState trained_part(const trainer::ParameterList& parameters, LiveState live);

}  // namespace trellis::checkpoint
