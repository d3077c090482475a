#include "trainer/parallel_layers/layers.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/derivative.h"
#include "trainer/parallel_layers/mappings.h"
#include "trainer/parallel_layers/sequence_parallel.h"

namespace trellis::trainer {
namespace {

at::Tensor rows(const at::Tensor& activations) { return activations.reshape({-1, activations.size(-1)}); }

/// Sum of the ranks' parts of an activation: in full, or this rank's part of the sequence.
at::Tensor reduce_activation(const at::Tensor& partial, const ParallelGroup& tp, bool sequence_parallel, at::ScalarType dtype) {
  return sequence_parallel ? reduce_scatter_to_sequence_parallel_region(partial, tp, dtype)
                           : reduce_from_tensor_model_parallel_region(partial, tp, dtype);
}

/// Backward of several linear layers on one input. The communications run beside the matrix products that do not need them:
///
///   gather X ───────────────┐
///   dX = Σ dY_i · A_i ──► reduce dX ───────────┐
///                           dA_i = dY_iᵀ · X   ▼ return
///
/// With sequence parallelism X is kept as its shard [s/TP, b, h] and gathered again here: memory for bandwidth, as NxD does.
class LinearWithAsyncCommunication final : public Derivative {
 public:
  LinearWithAsyncCommunication(const at::Tensor& input, const std::vector<at::Tensor>& weights, ParallelGroup tp, bool sequence_parallel,
                               at::ScalarType reduce_dtype)
      : num_weights_(weights.size()), tp_(std::move(tp)), sequence_parallel_(sequence_parallel), reduce_dtype_(reduce_dtype) {
    save(input);
    for (const at::Tensor& weight : weights) save(weight);
  }

 private:
  Tensors backward(Tensors grads) override {
    const at::Tensor input = saved(0);
    PendingCollective gather = sequence_parallel_ ? start_all_gather(input, tp_) : PendingCollective(input);
    const Tensors grad_rows = rows_of(grads);
    const at::Tensor grad_total = input_gradient(grad_rows).view(with_columns(grads[0], input.size(-1))).to(reduce_dtype_);
    PendingCollective reduce = sequence_parallel_ ? start_reduce_scatter(grad_total, tp_) : start_all_reduce(grad_total, tp_);
    Tensors result(1 + num_weights_);
    const at::Tensor total_rows = rows(gather.wait());
    for (std::size_t i = 0; i < num_weights_; ++i) result[1 + i] = at::mm(grad_rows[i].t(), total_rows);
    result[0] = reduce.wait().to(input.scalar_type());
    return result;
  }

  static Tensors rows_of(const Tensors& tensors) {
    Tensors result;
    for (const at::Tensor& tensor : tensors) result.push_back(rows(tensor));
    return result;
  }

  at::Tensor input_gradient(const Tensors& grad_rows) const {
    at::Tensor sum = at::mm(grad_rows[0], saved(1));
    for (std::size_t i = 1; i < num_weights_; ++i) sum.addmm_(grad_rows[i], saved(1 + i));
    return sum;
  }

  static std::vector<std::int64_t> with_columns(const at::Tensor& grad, std::int64_t columns) {
    std::vector<std::int64_t> sizes = grad.sizes().vec();
    sizes.back() = columns;
    return sizes;
  }

  std::size_t num_weights_;
  ParallelGroup tp_;
  bool sequence_parallel_;
  at::ScalarType reduce_dtype_;
};

}  // namespace

ParallelEmbedding::ParallelEmbedding(const ModuleContext& context, const std::string& path, std::int64_t num_embeddings,
                                     std::int64_t embedding_dim, double init_std)
    : weight_(make_parameter(context, {path + ".weight", {num_embeddings, embedding_dim}, 0, 1, init_std}).tensor),
      tp_(context.tp()),
      reduce_dtype_(context.reduce_dtype),
      sequence_parallel_(context.sequence_parallel),
      scope_(context.scope(path)) {}

at::Tensor ParallelEmbedding::forward(const at::Tensor& input_ids) const {
  const Scope scope = scope_.enter();
  const at::Tensor ids = input_ids.t();
  if (tp_.size == 1) return scope_.leave(at::embedding(weight_, ids));
  return scope_.leave(reduce_activation(look_up_own_rows(ids), tp_, sequence_parallel_, reduce_dtype_));
}

/// Rows of other ranks' tokens are zero: the sum over TP completes them.
at::Tensor ParallelEmbedding::look_up_own_rows(const at::Tensor& ids) const {
  const std::int64_t count = weight_.size(0);
  const at::Tensor local = ids - tp_.rank * count;
  const at::Tensor foreign = local.lt(0).logical_or_(local.ge(count));
  return at::embedding(weight_, local.masked_fill(foreign, 0)).masked_fill_(foreign.unsqueeze(-1), 0);
}

ColumnParallelLinear::ColumnParallelLinear(const ModuleContext& context, const std::string& path, std::int64_t input_size,
                                           const std::vector<Output>& outputs, double init_std, int stride)
    : tp_(context.tp()), reduce_dtype_(context.reduce_dtype), sequence_parallel_(context.sequence_parallel) {
  for (const Output& output : outputs) {
    const std::string name = output.name.empty() ? path : path + "." + output.name;
    weights_.push_back(make_parameter(context, {name + ".weight", {output.size, input_size}, 0, stride, init_std}).tensor);
  }
}

std::vector<at::Tensor> ColumnParallelLinear::forward(const at::Tensor& input) const {
  std::vector<at::Tensor> outputs;
  {
    BelowAutograd below;
    const at::Tensor total = sequence_parallel_ ? all_gather(input, tp_) : input;
    for (const at::Tensor& weight : weights_) outputs.push_back(at::linear(total, weight));
  }
  std::vector<at::Tensor> inputs{input};
  inputs.insert(inputs.end(), weights_.begin(), weights_.end());
  if (needs_derivative(inputs)) {
    attach(c10::make_intrusive<LinearWithAsyncCommunication>(input, weights_, tp_, sequence_parallel_, reduce_dtype_), inputs, outputs);
  }
  return outputs;
}

RowParallelLinear::RowParallelLinear(const ModuleContext& context, const std::string& path, std::int64_t input_size,
                                     std::int64_t output_size, double init_std)
    : weight_(make_parameter(context, {path + ".weight", {output_size, input_size}, 1, 1, init_std}).tensor),
      tp_(context.tp()),
      reduce_dtype_(context.reduce_dtype),
      sequence_parallel_(context.sequence_parallel) {}

at::Tensor RowParallelLinear::forward(const at::Tensor& input) const {
  return reduce_activation(at::linear(input, weight_), tp_, sequence_parallel_, reduce_dtype_);
}

}  // namespace trellis::trainer
