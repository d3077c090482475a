#include "trainer/models/decoder/preference_losses.h"

#include <source_location>
#include <vector>

#include <ATen/ops/stack.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/parallel_layers/mappings.h"

namespace trellis::trainer {
namespace {

struct Pair {
  at::Tensor chosen, rejected;  ///< [b]
  explicit Pair(const at::Tensor& both)
      : chosen(both.narrow(0, 0, both.size(0) / 2)),
        rejected(both.narrow(0, both.size(0) / 2, both.size(0) / 2)) {}
};

/// log sigmoid, which does not overflow: min(x, 0) − log(1 + e^−|x|). Its derivative at zero, where
/// DPO starts, is a half: that of x − |x| there, and not of a minimum.
at::Tensor log_of_sigmoid(const at::Tensor& x) {
  const at::Tensor size = x.abs();
  return (x - size) * 0.5 - size.neg().exp().log1p();
}

at::Tensor summed(const at::Tensor& input, const ParallelGroup& group, std::source_location where) {
  return all_reduce(input.clone(), group, where);
}

/// Over the parts of the sequences. Each rank computes the same loss from the sum, and gradients
/// are means over ranks: each gets the sum of the ranks' gradients.
at::Tensor over_parts(const at::Tensor& sums, const EntropyContext& context) {
  return communicate(sums, context.context, summed, summed);
}

/// Over pairs; rows that only fill a batch do not count.
class MeanOverPairs {
 public:
  MeanOverPairs(const MicroBatch& batch, std::int64_t pairs) {
    if (batch.loss_mask.defined()) weights_ = batch.loss_mask.narrow(0, 0, pairs).amax(1);
  }
  at::Tensor operator()(const at::Tensor& values) const {
    if (!weights_.defined()) return values.mean();
    const at::Tensor weights = weights_.to(values.scalar_type()), total = weights.sum();
    return (values * weights).sum() / (total + total.eq(0).to(total.scalar_type()));
  }

 private:
  at::Tensor weights_;
};

/// The tags that both strategies have, in the order of preference_tags().
std::vector<at::Tensor> common_metrics(const Pair& rewards, const Pair& log_probs,
                                       const MeanOverPairs& mean) {
  const at::Tensor margins = rewards.chosen - rewards.rejected;
  return {
      mean(rewards.chosen), mean(rewards.rejected), mean(margins.gt(0).to(margins.scalar_type())),
      mean(margins),        mean(log_probs.chosen), mean(log_probs.rejected)};
}

}  // namespace

PreferenceLoss odds_ratio_loss(const at::Tensor& logits, const MicroBatch& batch,
                               const EntropyContext& context, const OrpoSection& orpo) {
  CrossEntropyOptions options{.entry_dtype = context.entry_dtype, .ignore_index = kIgnored};
  if (orpo.trl) options.entry_dtype = logits.scalar_type();
  const at::Tensor labels = batch.labels.t();
  const at::Tensor losses = parallel_cross_entropy(logits, labels, context.tp, options);
  const at::Tensor counts =
      over_parts(labels.ne(kIgnored).sum(0).to(losses.scalar_type()), context);
  const at::Tensor log_probs = over_parts(losses.sum(0), context).neg() / counts;  // [2·b]
  const Pair p(log_probs), odds(log_probs - log_probs.exp().neg().log1p());
  const MeanOverPairs mean(batch, p.chosen.size(0));
  const at::Tensor log_odds = odds.chosen - odds.rejected, ratio = log_of_sigmoid(log_odds);
  at::Tensor nll = mean(p.chosen).neg();
  if (orpo.trl) {
    const at::Tensor tokens = batch.next_tokens.narrow(0, 0, p.chosen.size(0)).t();
    const at::Tensor each =
        parallel_cross_entropy(logits.narrow(1, 0, p.chosen.size(0)), tokens, context.tp, options);
    nll = over_parts(each.sum(), context) /
          over_parts(tokens.ne(kIgnored).sum().to(each.scalar_type()), context);
  }
  const at::Tensor mean_ratio = mean(ratio), kept = log_probs.detach();
  std::vector<at::Tensor> metrics = common_metrics(Pair(kept * orpo.beta), Pair(kept), mean);
  for (const at::Tensor& more : {nll.detach(), mean_ratio.detach(), mean(log_odds.detach())})
    metrics.push_back(more);
  return {nll - mean_ratio * orpo.beta, kept, at::stack(metrics)};
}

PreferenceLoss direct_preference_loss(const at::Tensor& logits, const MicroBatch& batch,
                                      const EntropyContext& context, const DpoSection& dpo) {
  const at::Tensor losses =
      parallel_cross_entropy(logits, batch.labels.t(), context.tp,
                             {.entry_dtype = context.entry_dtype, .ignore_index = kIgnored});
  const at::Tensor log_probs = over_parts(losses.sum(0), context).neg();  // [2·b]
  at::Tensor ratios = log_probs;
  if (batch.reference_log_probs.defined())
    ratios = ratios - batch.reference_log_probs.to(log_probs.scalar_type());
  const Pair ratio(ratios), kept(log_probs.detach());
  const MeanOverPairs mean(batch, ratio.chosen.size(0));
  const at::Tensor loss = mean(log_of_sigmoid((ratio.chosen - ratio.rejected) * dpo.beta)).neg();
  return {loss, log_probs.detach(),
          at::stack(common_metrics(Pair(ratios.detach() * dpo.beta), kept, mean))};
}

}  // namespace trellis::trainer
