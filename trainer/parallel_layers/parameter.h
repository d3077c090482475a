#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/utils/scope.h"

namespace trellis::trainer {

/// A trainable tensor: this rank's shard, with what NxD attaches to a parameter as attributes.
struct Parameter {
  std::string name;                        ///< global: the same whatever the stage and the layout
  at::Tensor tensor;
  bool tensor_model_parallel = false;      ///< sharded over TP along partition_dim
  int partition_dim = -1;
  int partition_stride = 1;                ///< blocks fused into one tensor (gate|up: 2); each is sharded for itself
  bool sequence_parallel_enabled = false;  ///< each TP rank has a part of its gradient: to be summed over TP
  bool weight_decay = true;
};

/// In order of construction; addresses are stable.
using ParameterList = std::deque<Parameter>;

/// What a module needs to know about its run to build itself.
struct ModuleContext {
  const ParallelState* parallel = nullptr;
  ParameterList* parameters = nullptr;      ///< modules add theirs
  std::shared_ptr<BackwardLayer> backward;  ///< see LayerScope
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;        ///< of weights and activations
  at::ScalarType reduce_dtype = at::kFloat; ///< of sums over TP
  bool sequence_parallel = false;
  bool shape_only = false;                  ///< values do not matter: skip work that only makes values
  std::int64_t seed = 0;

  [[nodiscard]] const ParallelGroup& tp() const { return parallel->get_tensor_model_parallel_group(); }
  [[nodiscard]] LayerScope scope(const std::string& path) const { return LayerScope(path, backward); }
};

/// How to make a weight: its un-sharded shape and what to fill it with.
struct WeightSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  int partition_dim = -1;    ///< −1: replicated over TP
  int partition_stride = 1;
  double init_std = 0;       ///< standard deviation of the normal distribution; 0: ones
};

/// Makes this rank's shard and adds it to the context's list. The un-sharded weight is drawn on the CPU from a stream that depends on
/// (seed, name) only, then sliced: the model does not depend on the layout. Throws ConfigError when TP does not divide the shape.
Parameter& make_parameter(const ModuleContext& context, const WeightSpec& spec);

/// The shard of `tp.rank`: each of `stride` blocks of dimension `dim` is split over the group, the parts are joined again.
at::Tensor shard_of(const at::Tensor& full, int dim, int stride, const ParallelGroup& tp);
/// The inverse: joins the shards of all ranks, in rank order.
at::Tensor join_shards(const std::vector<at::Tensor>& shards, int dim, int stride);

}  // namespace trellis::trainer
