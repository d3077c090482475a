#include "trainer/parallel_layers/linear_with_async_communication.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

at::Tensor rows(const at::Tensor& activations) {
  return activations.reshape({-1, activations.size(-1)});
}

/// The communications run concurrently with the matrix products that do not need them:
///
///   gather X ────────────────────────┐
///   sum dY of replicated rows ───────┤
///   dX = Σ dY_i · A_i ──► reduce dX ─┼─────────┐
///                           dA_i = dY_iᵀ · X   ▼ return
///
/// With sequence parallelism X is kept as its shard [s/TP, b, h] and gathered again here: memory
/// for bandwidth, as NxD does. dX uses the gradients before the sum over replicas: each of them
/// carries its own query heads' part, and the sum over TP adds those up.
class LinearWithAsyncCommunication final : public Derivative {
 public:
  /// Frozen weights have no gradient: then the input is neither kept nor gathered.
  LinearWithAsyncCommunication(const at::Tensor& input, ColumnShards layer)
      : layer_(std::move(layer)),
        num_weights_(layer_.weights.size()),
        columns_(input.size(-1)),
        dtype_(input.scalar_type()),
        frozen_(!torch::autograd::any_variable_requires_grad(layer_.weights)),
        trains_biases_(torch::autograd::any_variable_requires_grad(layer_.biases)) {
    save(frozen_ ? at::Tensor() : input);
    for (const at::Tensor& weight : layer_.weights) save(weight);
    layer_.weights.clear();
  }

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor input = saved(0);
    const bool scattered = layer_.sequence_parallel;
    PendingCollective gather =
        scattered && !frozen_ ? start_all_gather(input, layer_.tp) : PendingCollective(input);
    Tensors grad_rows;
    for (const at::Tensor& grad : grads) grad_rows.push_back(rows(grad));
    PendingCollective replicas = start_replica_sum(grad_rows);
    const at::Tensor grad_total =
        input_gradient(grad_rows).view(with_columns(grads[0], columns_)).to(layer_.reduce_dtype);
    PendingCollective reduce = scattered ? start_reduce_scatter(grad_total, layer_.tp)
                                         : start_all_reduce(grad_total, layer_.tp);
    finish_replica_sum(replicas, grad_rows);
    Tensors result(1);
    append_weight_gradients(result, gather.wait(), grad_rows);
    result[0] = reduce.wait().to(dtype_);
    return result;
  }

  void append_weight_gradients(Tensors& result, const at::Tensor& total,
                               const Tensors& grad_rows) const {
    if (frozen_) {
      result.resize(1 + num_weights_);
    } else {
      const at::Tensor total_rows = rows(total);
      for (const at::Tensor& grad : grad_rows) result.push_back(at::mm(grad.t(), total_rows));
    }
    if (!trains_biases_) return result.resize(1 + num_weights_ + layer_.biases.size());
    for (const at::Tensor& grad : grad_rows) result.push_back(grad.sum(0));
  }

  [[nodiscard]] at::Tensor input_gradient(const Tensors& grad_rows) const {
    at::Tensor sum = at::mm(grad_rows[0], saved(1));
    for (std::size_t i = 1; i < num_weights_; ++i) sum.addmm_(grad_rows[i], saved(1 + i));
    return sum;
  }

  [[nodiscard]] bool has_replicas() const {
    return (!frozen_ || trains_biases_) && !layer_.replicated_rows.empty() &&
           layer_.kv_shared.size > 1;
  }

  /// One sum for the replicated columns of all gradients.
  [[nodiscard]] PendingCollective start_replica_sum(const Tensors& grad_rows) const {
    if (!has_replicas()) return PendingCollective(at::Tensor());
    Tensors columns;
    for (std::size_t i = 0; i < num_weights_; ++i) {
      const std::int64_t count = layer_.replicated_rows[i];
      if (count > 0) columns.push_back(grad_rows[i].narrow(1, grad_rows[i].size(1) - count, count));
    }
    return start_all_reduce(at::cat(columns, 1).to(layer_.reduce_dtype), layer_.kv_shared);
  }

  void finish_replica_sum(PendingCollective& pending, Tensors& grad_rows) const {
    if (!has_replicas()) return;
    const at::Tensor sums = pending.wait().to(grad_rows[0].scalar_type());
    std::int64_t first = 0;
    for (std::size_t i = 0; i < num_weights_; ++i) {
      const std::int64_t count = layer_.replicated_rows[i], own = grad_rows[i].size(1) - count;
      const at::Tensor sum = sums.narrow(1, first, count);
      if (count > 0)
        grad_rows[i] = own > 0 ? at::cat({grad_rows[i].narrow(1, 0, own), sum}, 1) : sum;
      first += count;
    }
  }

  static std::vector<std::int64_t> with_columns(const at::Tensor& grad, std::int64_t columns) {
    std::vector<std::int64_t> sizes = grad.sizes().vec();
    sizes.back() = columns;
    return sizes;
  }

  ColumnShards layer_;
  std::size_t num_weights_;
  std::int64_t columns_;  ///< of the input
  at::ScalarType dtype_;  ///< of the input
  bool frozen_, trains_biases_;
};

/// Converts a tensor as autocast would do here. The derivative above runs outside of autocast, so
/// the types are settled before.
at::Tensor in_autocast_type(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  if (!at::autocast::is_autocast_enabled(device) || tensor.scalar_type() == at::kDouble)
    return tensor;
  return tensor.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace

std::vector<at::Tensor> linear_with_async_communication(const at::Tensor& given_input,
                                                        const ColumnShards& given_layer) {
  const at::Tensor input = in_autocast_type(given_input);
  ColumnShards layer = given_layer;
  for (at::Tensor& weight : layer.weights) weight = in_autocast_type(weight);
  for (at::Tensor& bias : layer.biases) bias = in_autocast_type(bias);
  std::vector<at::Tensor> outputs;
  {
    BelowAutograd below;
    const at::Tensor total = layer.sequence_parallel ? all_gather(input, layer.tp) : input;
    for (std::size_t i = 0; i < layer.weights.size(); ++i) {
      outputs.push_back(layer.biases.empty()
                            ? at::linear(total, layer.weights[i])
                            : at::linear(total, layer.weights[i], layer.biases[i]));
    }
  }
  std::vector<at::Tensor> inputs{input};
  inputs.insert(inputs.end(), layer.weights.begin(), layer.weights.end());
  inputs.insert(inputs.end(), layer.biases.begin(), layer.biases.end());
  if (needs_derivative(inputs))
    attach(c10::make_intrusive<LinearWithAsyncCommunication>(input, layer), inputs, outputs);
  return outputs;
}

}  // namespace trellis::trainer
