#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/optimizer/update_rule.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Parameters of one kind whose gradients are summed in one communication. Each parameter is padded
/// along dimension 0 to a multiple of the sharding group's size and split along it, as
/// NeuronZero1Optimizer does: not where it is stored, but in a copy that lives while it travels.
/// Parameters a (3 rows) and b (2 rows) over two ranks:
///
///   main_grad   [ a row 0 | a row 1 | a row 2 | b row 0 | b row 1 ]
///   travels     [ a row 0 | a row 1 | a row 2 | padding ] [ b row 0 | b row 1 ]
///   shard 0     [ a row 0 | a row 1 | b row 0 ]
///   shard 1     [ a row 2 | padding | b row 1 ]
///
/// Fully sharded weights (Parameter::shard) have a gradient only from a micro-batch's backward to
/// the end of its reduction; gathers of updated weights stay on the rank.
///
/// A shard is one flat tensor: an elementwise optimizer runs once per bucket, not once per
/// parameter. Padding is and stays zero. It grows with the group (one row per rank at least), so
/// that the caller bounds how many communications with padded copies are under way.
class ParameterBucket {
 public:
  /// Takes over the parameters' gradients: backward adds each one to main_grad and frees it.
  /// `expert`: over which other experts' weights lie, for rules that need whole tensors.
  ParameterBucket(std::vector<Parameter*> parameters, ParallelGroup tensor, ParallelGroup sharding,
                  at::ScalarType grad_dtype, ParallelGroup expert = {});
  ParameterBucket(const ParameterBucket&) = delete;
  ParameterBucket& operator=(const ParameterBucket&) = delete;
  ~ParameterBucket();

  [[nodiscard]] const Parameter& kind() const {
    return *slots_.front().parameter;
  }  ///< attributes shared by all
  [[nodiscard]] const ShardLayout& layout() const { return layout_; }
  [[nodiscard]] const at::Tensor& main_grad() const {
    return main_grad_;
  }  ///< the accumulated gradients, flat
  [[nodiscard]] bool is_padded() const { return layout_.elements * sharding_.size != elements_; }
  [[nodiscard]] bool is_fully_sharded() const { return kind().is_fully_sharded(); }
  /// Type and device of the gradients and of the optimizer's numbers.
  [[nodiscard]] const at::TensorOptions& options() const { return options_; }
  /// The accumulated gradient of one parameter, in its shape; undefined for a parameter of another
  /// bucket.
  [[nodiscard]] at::Tensor main_grad_of(const Parameter& parameter) const;
  /// Calls `complete` from backward, once per step, when each parameter got `gradients` of them.
  /// More of them are then an error. Fully sharded: each time when each parameter got as many more.
  void on_complete(int gradients, std::function<void()> complete);
  /// True if each parameter got as many gradients in this step as on_complete() expects.
  [[nodiscard]] bool has_all_gradients() const;
  /// As many more gradients of each parameter that got one count as arrived, though no one computed
  /// them. REQUIRES: others follow.
  void skip(int gradients);
  /// Ends the accumulation: the next gradient starts a new sum. Throws when a parameter got none.
  void end_accumulation();
  /// Frees main_grad(), whose reduction is under way. REQUIRES: fully sharded.
  void release_gradient();

  /// Sums main_grad over the sharding group, in `dtype`. The result is this rank's shard; main_grad
  /// itself when the group has one member.
  [[nodiscard]] PendingCollective start_reduce_scatter(at::ScalarType dtype) const;
  /// This rank's shard of the parameters' values.
  [[nodiscard]] at::Tensor shard_of_parameters(at::ScalarType dtype) const;

  /// A gather under way: parameters with padding arrive in a copy.
  struct Gather {
    PendingCollective pending;
    std::vector<std::pair<at::Tensor, at::Tensor>> padded;  ///< parameter, where it arrives
    void finish();
  };
  /// Sets the parameters from the shards of the whole group, in the parameters' type.
  [[nodiscard]] Gather start_all_gather(const at::Tensor& shard) const;

 private:
  class AccumulateMainGrad;
  struct Slot {
    Parameter* parameter = nullptr;
    at::Tensor main_grad;  ///< as the parameter's shape
    int gradients = 0;     ///< in this step
  };

  void add_slot(Parameter* parameter);
  void allocate_gradient();
  void accumulate(Slot& slot, const at::Tensor& grad);
  void accumulate_of_pass(Slot& slot, const at::Tensor& grad);
  /// Flat, in `dtype`, padded for the sharding group: main_grad itself where nothing changes.
  [[nodiscard]] at::Tensor padded_main_grad(std::size_t slot, at::ScalarType dtype) const;
  [[nodiscard]] std::vector<at::Tensor> slices_of(const at::Tensor& shard) const;

  ParallelGroup sharding_;
  ShardLayout layout_;
  std::vector<Slot> slots_;
  std::int64_t elements_ = 0;   ///< of main_grad
  at::TensorOptions options_;   ///< of main_grad
  at::Tensor main_grad_;        ///< fully sharded: undefined most of the time
  int expected_gradients_ = 0;  ///< per parameter; 0: any number
  std::size_t complete_slots_ = 0;
  std::function<void()> complete_;
};

}  // namespace trellis::trainer
