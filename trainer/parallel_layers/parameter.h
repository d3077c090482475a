#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/partition.h"
#include "trainer/parallel_layers/sequence_shard.h"
#include "trainer/parallel_layers/step_position.h"
#include "trainer/parallel_layers/weight_init.h"
#include "trainer/scopes/scope.h"

namespace trellis::trainer {

/// An optimizer's settings for a group of parameters.
struct OptimizerGroup {
  double weight_decay = 0;
  double lr_scale = 1;  ///< times the optimizer's learning rate
  auto operator<=>(const OptimizerGroup&) const = default;
};

/// Weights of experts first … first + count − 1 of `total`, stacked along dimension 0: the part of
/// an expert-parallel rank.
struct ExpertRange {
  int first = 0, count = 0, total = 0;
  [[nodiscard]] bool is_stacked() const { return total > 0; }
  bool operator==(const ExpertRange&) const = default;
};

/// A weight: this rank's shard, with what NxD attaches to a parameter as attributes.
struct Parameter {
  std::string name;  ///< global: the same whatever the stage and the layout
  at::Tensor tensor;
  bool tensor_model_parallel = false;  ///< sharded over TP along partition_dim
  int partition_dim = -1;
  int partition_stride =
      1;                ///< blocks fused into one tensor (gate|up: 2); each is sharded for itself
  Partition partition;  ///< the whole truth: which un-sharded rows each rank holds; join_shards()
                        ///< undoes it
  bool sequence_parallel_enabled =
      false;            ///< each TP rank has a part of its gradient: to be summed over TP
  ExpertRange experts;  ///< none for everything that is not an expert's. Its gradient is the sum of
                        ///< what all ranks of its EP group sent here: reduced over the ranks that
                        ///< hold the same experts only
  bool adapter = false;  ///< of LoRA. A weight that is none takes no part in a fine-tuning: its
                         ///< tensor requires no gradient.
  bool weight_decay = true;
  std::optional<OptimizerGroup> group =
      {};  ///< of an optimizer's own group; none: the optimizer's numbers, by weight_decay
  bool tied = false;    ///< has copies on other stages, or is one: its gradient is complete only
                        ///< after their sum
  int stage = 0;        ///< virtual pipeline stage that it is of
  bool shared = false;  ///< the copy of a tied weight: its gradient is summed with the original's,
                        ///< norms skip it
  /// Ranks that hold the same key/value rows. Their gradients leave backward summed over it, so the
  /// copies stay bit-equal; a norm counts each row once (PartitionBlock::copies). A group of one
  /// for everything else.
  ParallelGroup kv_shared_group;
  int unit = -1;  ///< of fully sharded data parallelism; −1: the weight is whole on each rank
  /// This rank's rows of a fully sharded weight, flat, with the padding of rows_per_shard():
  /// `tensor` has values only while its unit is gathered.
  at::Tensor shard = {};
  [[nodiscard]] bool is_fully_sharded() const { return shard.defined(); }
};

/// Rows of dimension 0 that each rank of a sharding group has of a parameter: all have equally
/// many, the last ones padding.
[[nodiscard]] inline std::int64_t rows_per_shard(const at::Tensor& parameter, int shards) {
  return (parameter.size(0) + shards - 1) / shards;
}

/// Parameters in the order of their construction; addresses are stable.
using ParameterList = std::deque<Parameter>;

class FullySharding;
struct LoraSection;

/// The properties of a run that a module needs when it is built.
struct ModuleContext {
  const ParallelState* parallel = nullptr;
  ParameterList* parameters = nullptr;      ///< modules add theirs
  std::shared_ptr<BackwardLayer> backward;  ///< see LayerScope
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  ///< of weights and activations
  std::optional<at::ScalarType>
      wide_dtype;  ///< of softmax and cross entropy; none: fp32, fp64 for fp64
  at::ScalarType reduce_dtype = at::kFloat;  ///< of sums over TP
  bool sequence_parallel = false;
  bool balanced_context = false;  ///< order of the sequence over context-parallel ranks
  bool pad_model = false;  ///< NxD's pad_model: attention heads that TP does not divide are filled
                           ///< up with heads of zeros
  bool decay_biases =
      false;  ///< weight decay applies to biases too (model.do_layer_norm_weight_decay)
  bool shape_only = false;  ///< values do not matter: skip work that only makes values
  std::int64_t seed = 0;
  std::shared_ptr<FullySharding> fully_sharded = nullptr;  ///< null: weights are whole
  /// Each parallel layer that it targets by its path gets an adapter. Null: none does;
  /// the modules of the trainer's models, which have other names for layers, add theirs themselves.
  const LoraSection* lora = nullptr;
  /// Where training is. The engine writes it before each forward; dropout and checkpoint() read it.
  std::shared_ptr<StepPosition> position = std::make_shared<StepPosition>();

  [[nodiscard]] const ParallelGroup& tp() const {
    return parallel->get_tensor_model_parallel_group();
  }
  /// This rank's part of a sequence of `length` positions.
  [[nodiscard]] SequenceShard sequence(std::int64_t length) const {
    return {length, parallel->get_context_model_parallel_rank(),
            parallel->get_context_model_parallel_size(), balanced_context};
  }
  [[nodiscard]] LayerScope scope(const std::string& path) const {
    return LayerScope(path, backward);
  }
};

/// One of several weights stacked along dimension 0, drawn as if it were alone.
struct WeightPart {
  std::string name;
  std::int64_t rows = 0;
};

/// How to make a weight: its un-sharded shape and what to fill it with.
struct WeightSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  int partition_dim = -1;  ///< −1: replicated over TP
  int partition_stride = 1;
  WeightInit init = {};
  std::optional<Partition> partition = {};  ///< instead of dimension and stride
  std::vector<WeightPart> parts = {};       ///< empty: drawn as one
};

/// The stream of random numbers of (seed, name): what is drawn from it depends on nothing else.
[[nodiscard]] std::uint64_t stream_seed(std::int64_t seed, const std::string& name);

/// Makes this rank's shard and adds it to the context's list. The un-sharded weight is drawn on the
/// CPU from a stream that depends on (seed, name) only, then sliced: the model does not depend on
/// the layout. Throws ConfigError when TP does not divide the shape.
Parameter& make_parameter(const ModuleContext& context, const WeightSpec& spec);
/// The un-sharded weight in fp32 (widened in an fp64 run: the same numbers) on the CPU, as
/// make_parameter draws it.
[[nodiscard]] at::Tensor draw_full_weight(const ModuleContext& context, const WeightSpec& spec);

/// The shard of `tp.rank`: each of `stride` blocks of dimension `dim` is split over the group, the
/// parts are joined again.
at::Tensor shard_of(const at::Tensor& full, int dim, int stride, const ParallelGroup& tp);
/// The inverse: joins the shards of all ranks, in rank order.
at::Tensor join_shards(const std::vector<at::Tensor>& shards, int dim, int stride);

}  // namespace trellis::trainer
