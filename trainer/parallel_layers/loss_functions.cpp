#include "trainer/parallel_layers/loss_functions.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/stack.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

/// Targets as rows of this rank's shard: those of other ranks read row 0 and count nothing.
struct LocalTarget {
  at::Tensor index;    ///< [.., 1]
  at::Tensor foreign;  ///< [.., 1]; undefined when all targets are own
};

LocalTarget localize(const at::Tensor& target, std::int64_t rows, const ParallelGroup& tp) {
  const at::Tensor column = target.unsqueeze(-1);
  if (tp.size == 1) return {column, {}};
  const at::Tensor local = column - tp.rank * rows;
  const at::Tensor foreign = local.lt(0).logical_or_(local.ge(rows));
  return {local.masked_fill(foreign, 0), foreign};
}

/// d loss / d logits = (softmax − onehot(target)) · grad.
class CrossEntropyBackward final : public Derivative {
 public:
  CrossEntropyBackward(const at::Tensor& softmax, const LocalTarget& target, at::ScalarType logits_dtype)
      : has_foreign_(target.foreign.defined()), logits_dtype_(logits_dtype) {
    save(softmax);
    save(target.index);
    if (has_foreign_) save(target.foreign);
  }

 private:
  /// Works in the saved softmax, the largest tensor of the step: this derivative is used once.
  Tensors backward(Tensors grads) override {
    const at::Tensor grad = grads[0].unsqueeze(-1);
    at::Tensor result = saved(0).mul_(grad);
    at::Tensor own = grad.neg();
    if (has_foreign_) own.masked_fill_(saved(2), 0);
    result.scatter_add_(-1, saved(1), own);
    return {result.to(logits_dtype_)};
  }

  bool has_foreign_;
  at::ScalarType logits_dtype_;
};

}  // namespace

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target, const ParallelGroup& tp) {
  at::Tensor loss, softmax;
  LocalTarget local;
  {
    BelowAutograd below;
    local = localize(target, logits.size(-1), tp);
    const at::ScalarType dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor max = all_reduce_max(at::amax(logits, {-1}, /*keepdim=*/true).to(dtype), tp);
    softmax = logits - max;
    at::Tensor predicted = softmax.gather(-1, local.index);
    if (local.foreign.defined()) predicted.masked_fill_(local.foreign, 0);
    at::Tensor sum = softmax.exp_().sum(-1, /*keepdim=*/true);
    if (tp.size > 1) {
      const at::Tensor both = all_reduce(at::stack({sum, predicted}), tp);
      sum = both.select(0, 0);
      predicted = both.select(0, 1);
    }
    softmax.div_(sum);
    loss = sum.log().sub_(predicted).squeeze(-1);
  }
  if (needs_derivative({logits})) {
    attach(c10::make_intrusive<CrossEntropyBackward>(softmax, local, logits.scalar_type()), {logits}, {loss});
  }
  return loss;
}

}  // namespace trellis::trainer
