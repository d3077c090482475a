#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// One parameter inside a flat shard. The shard holds `rows` rows of it, of `row_elements` elements
/// each, and padding after them.
struct ShardSlot {
  const Parameter* parameter = nullptr;
  std::int64_t offset = 0;     ///< in the shard
  std::int64_t elements = 0;   ///< with padding
  std::int64_t first_row = 0;  ///< of dimension 0 of this rank's parameter
  std::int64_t rows = 0;       ///< without padding; 0 on a rank that has padding only
  std::int64_t row_elements = 0;
  at::Tensor row_weights;  ///< [rows], 1/copies of each row in fp64; undefined where no row has
                           ///< copies on other TP ranks
  [[nodiscard]] std::int64_t valid_elements() const { return rows * row_elements; }
};

/// Un-sharded, un-replicated size of the dimension that a partition shards. REQUIRES:
/// partition.is_sharded().
[[nodiscard]] std::int64_t unsharded_size(const Partition& partition);
/// 1/copies of each row of a rank's shard, in fp64; undefined when no row has copies.
[[nodiscard]] at::Tensor row_weights_of(const Parameter& parameter, int tensor_parallel_size);

/// A flat shard of parameters as a rule sees it, and over which groups their other parts are
/// spread.
struct ShardLayout {
  std::vector<ShardSlot> slots;
  std::int64_t elements = 0;  ///< of the shard
  ParallelGroup tensor;       ///< over which parameters with tensor_model_parallel are sharded
  ParallelGroup
      sharding;  ///< over which dimension 0 is split once more (ZeRO-1); one member without
  ParallelGroup expert = {};  ///< over which experts' weights have other experts
};

/// The unit for which a state has one number.
enum class StateExtent : std::uint8_t {
  kElements,  ///< each element of a parameter
  kRows,      ///< each index of dimension 0
  kColumns,   ///< each index of dimension 1 of a matrix
  kTensor     ///< each parameter
};

/// One state of an optimizer over a shard, named as in PyTorch's state dictionaries.
struct OptimizerState {
  std::string name;
  std::vector<at::Tensor> parts;  ///< one tensor over the whole shard, or one per parameter
  StateExtent extent = StateExtent::kElements;
};

/// Tensors that a rule updates; all have one floating-point type.
struct ShardValues {
  at::Tensor parameters,
      grad;  ///< flat; padding is zero and stays zero. `grad` may be overwritten.
  std::vector<OptimizerState>& states;
};

/// The numbers of a step that differ from step to step, as 0-dimensional tensors on the device: the
/// operations are then the same in every step, and a compiled step can be used again.
using StepNumbers = std::vector<at::Tensor>;

/// An optimizer's formula on flat shards. The result equals the un-sharded optimizer on every
/// layout.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// New states, as before the first step.
  [[nodiscard]] virtual std::vector<OptimizerState> make_states(
      const ShardLayout& layout, const at::TensorOptions& options) const = 0;
  /// The numbers of a step, computed on the host. `step` counts from 1.
  [[nodiscard]] virtual std::vector<double> numbers(std::int64_t step, double lr,
                                                    double weight_decay) const = 0;
  /// One step. Collective over the layout's groups for rules that need whole tensors.
  virtual void apply(const ShardLayout& layout, ShardValues values,
                     const StepNumbers& numbers) const = 0;
  /// States of adamw_fp32OptState stay fp32 whatever the weights are.
  [[nodiscard]] virtual bool fp32_states() const { return false; }
};

}  // namespace trellis::trainer
