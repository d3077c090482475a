#include "trainer/parallel_layers/loss_functions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/derivative.h"

namespace trellis::trainer {
namespace {

/// Targets as entries of this rank's part of the vocabulary: those of other ranks, and ignored
/// ones, read entry 0 and count nothing.
struct LocalTarget {
  at::Tensor index;    ///< [.., 1]
  at::Tensor foreign;  ///< [.., 1]
  at::Tensor ignored;  ///< [.., 1]
};

LocalTarget localize(const at::Tensor& target, std::int64_t size, const ParallelGroup& tp,
                     std::int64_t ignore_index) {
  const at::Tensor column = target.unsqueeze(-1), ignored = column.eq(ignore_index);
  if (tp.size == 1) return {column.masked_fill(ignored, 0), ignored, ignored};
  const at::Tensor local = column - tp.rank * size;
  const at::Tensor foreign = local.lt(0).logical_or_(local.ge(size)).logical_or_(ignored);
  return {local.masked_fill(foreign, 0), foreign, ignored};
}

/// d loss / d logits = (softmax − (1 − ε)·onehot(target) − ε/K) · grad, and 0 where the target is
/// ignored.
class CrossEntropyBackward final : public Derivative {
 public:
  CrossEntropyBackward(const at::Tensor& softmax, const LocalTarget& target, double smoothing,
                       std::int64_t vocabulary, at::ScalarType logits_dtype)
      : smoothing_(smoothing), vocabulary_(vocabulary), logits_dtype_(logits_dtype) {
    for (const at::Tensor& tensor : {softmax, target.index, target.foreign, target.ignored})
      save(tensor);
  }

 private:
  /// Works in the saved softmax, the largest tensor of the step: this derivative is used once.
  Tensors backward(Tensors grads) override {
    const at::Tensor grad = grads[0].unsqueeze(-1).masked_fill(saved(3), 0);
    at::Tensor result = saved(0);
    if (smoothing_ > 0) result.sub_(smoothing_ / static_cast<double>(vocabulary_));
    result.mul_(grad);
    result.scatter_add_(
        -1, saved(1), grad.mul(smoothing_ - 1).masked_fill_(saved(2), 0).to(result.scalar_type()));
    return {result.to(logits_dtype_)};
  }

  double smoothing_;
  std::int64_t vocabulary_;
  at::ScalarType logits_dtype_;
};

/// Per token, [.., 1], over the whole vocabulary; logits less their maximum.
struct Sums {
  at::Tensor of_exponentials;
  at::Tensor predicted;  ///< the target's logit
  at::Tensor of_logits;  ///< undefined without label smoothing
};

/// Leaves exp(shifted) in `shifted`; the sums are of type `dtype`. One communication for all sums.
Sums sum_over_vocabulary(const at::Tensor& shifted, const LocalTarget& target, bool smoothing,
                         at::ScalarType dtype, const ParallelGroup& tp) {
  Sums sums;
  sums.predicted = shifted.gather(-1, target.index).to(dtype).masked_fill_(target.foreign, 0);
  if (smoothing) sums.of_logits = shifted.sum(-1, /*keepdim=*/true, dtype);
  sums.of_exponentials = shifted.exp_().sum(-1, /*keepdim=*/true, dtype);
  if (tp.size == 1) return sums;
  std::vector<at::Tensor> parts{sums.of_exponentials, sums.predicted};
  if (smoothing) parts.push_back(sums.of_logits);
  const at::Tensor total = all_reduce(at::stack(parts), tp);
  return {total.select(0, 0), total.select(0, 1), smoothing ? total.select(0, 2) : at::Tensor()};
}

}  // namespace

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const ParallelGroup& tp, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  if (!(smoothing >= 0 && smoothing < 1)) {
    throw ConfigError(
        c10::str("parallel_cross_entropy: label_smoothing: expected 0 ≤ label_smoothing < 1, got ",
                 smoothing));
  }
  const std::int64_t vocabulary = logits.size(-1) * tp.size;
  at::Tensor loss, softmax;
  LocalTarget local;
  {
    BelowAutograd below;
    local = localize(target, logits.size(-1), tp, options.ignore_index);
    const at::ScalarType dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor max = all_reduce_max(at::amax(logits, {-1}, /*keepdim=*/true).to(dtype), tp);
    softmax = logits - max.to(options.entry_dtype.value_or(dtype));
    const Sums sums = sum_over_vocabulary(softmax, local, smoothing > 0, dtype, tp);
    softmax.div_(sums.of_exponentials);
    loss = sums.of_exponentials.log().sub_(sums.predicted, 1 - smoothing);
    if (smoothing > 0) loss.sub_(sums.of_logits, smoothing / static_cast<double>(vocabulary));
    loss = loss.masked_fill_(local.ignored, 0).squeeze(-1);
  }
  if (needs_derivative({logits})) {
    attach(c10::make_intrusive<CrossEntropyBackward>(softmax, local, smoothing, vocabulary,
                                                     logits.scalar_type()),
           {logits}, {loss});
  }
  return loss;
}

at::Tensor from_parallel_logits_to_logprobs(const at::Tensor& logits, const at::Tensor& tokens,
                                            const ParallelGroup& tp, bool inference) {
  const at::AutoGradMode recording(at::GradMode::is_enabled() && !inference);
  return parallel_cross_entropy(logits.narrow(1, 0, logits.size(1) - 1),
                                tokens.narrow(1, 1, tokens.size(1) - 1), tp)
      .neg();
}

}  // namespace trellis::trainer
