#include "trainer/modules/moe/router.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/parallel_layers/dropout.h"

namespace trellis::trainer {
namespace {

constexpr double kNoZeroDivision = 1e-8;

}  // namespace

Router::Router(const ModuleContext& context, const std::string& path, const ModelSection& config)
    : path_(path),
      moe_(*config.moe),
      auxiliary_(auxiliary_loss_of(config)),
      wide_(context.dtype == at::kDouble ? at::kDouble : context.wide_dtype.value_or(at::kFloat)),
      device_(context.device),
      shape_only_(context.shape_only),
      tp_size_(context.tp().size),
      seed_(context.seed),
      position_(context.position) {
  Parameter& parameter = make_parameter(context, {.name = path + ".linear_router.weight",
                                                  .shape = {moe_.num_experts, config.hidden_size},
                                                  .init = config.init_method_std});
  // Each TP rank multiplies the affinities with its part of the experts' output.
  parameter.sequence_parallel_enabled = true;
  weight_ = parameter.tensor;
}

Choice Router::forward(const at::Tensor& tokens, int layer,
                       const std::shared_ptr<RouterRecord>& record) const {
  at::Tensor logits = at::linear(with_jitter(tokens).to(wide_), weight_.to(wide_));
  if (auxiliary_.is_on()) {
    const at::Tensor probabilities = at::softmax(logits.detach(), -1);
    record->layers[layer].probabilities = probabilities.mean(0);
    logits = with_auxiliary_gradient(logits, probabilities, record, tp_size_);
  }
  return choose(logits);
}

Choice Router::choose(const at::Tensor& logits) const {
  const std::int64_t k = moe_.top_k;
  if (moe_.routing_algorithm == "sinkhorn") {
    const at::Tensor score = position_->training ? balanced(logits) : logits.detach();
    const at::Tensor best = std::get<1>(at::topk(score, 1, -1));
    const at::Tensor activated =
        moe_.router_activation == "softmax" ? at::softmax(logits, -1) : at::sigmoid(logits);
    return {best, activated.gather(1, best), logits};
  }
  const bool grouped = moe_.routing_algorithm == "group_limited";
  const at::Tensor scores = grouped ? at::sigmoid(logits) : at::softmax(logits, -1);
  const at::Tensor judged = grouped ? without_lesser_groups(scores.detach()) : logits.detach();
  const at::Tensor best = std::get<1>(at::topk(judged, k, -1));
  return {best, scores.gather(1, best), logits};
}

/// Row sums 1/tokens and column sums 1/experts, approached alternately.
at::Tensor Router::balanced(const at::Tensor& logits) const {
  const at::Tensor cost = logits.detach().exp();
  const double rows = 1.0 / static_cast<double>(cost.size(0)),
               columns = 1.0 / static_cast<double>(cost.size(1));
  at::Tensor of_rows = at::ones({cost.size(0)}, cost.options()),
             of_columns = at::ones({cost.size(1)}, cost.options()), before;
  for (int i = 0; i < moe_.sinkhorn_iterations; ++i) {
    before = of_columns;
    of_rows = (cost.matmul(of_columns) + kNoZeroDivision).reciprocal().mul(rows);
    of_columns = (of_rows.matmul(cost) + kNoZeroDivision).reciprocal().mul(columns);
  }
  if (moe_.sinkhorn_tol && !shape_only_) {
    const double error = (before - of_columns).abs().mean().item<double>();
    if (!(error < *moe_.sinkhorn_tol)) {
      throw ConfigError(c10::str("model.moe.sinkhorn_tol: ", path_, ": after ",
                                 moe_.sinkhorn_iterations, " iterations the error is ", error,
                                 ": expected less than ", *moe_.sinkhorn_tol,
                                 "; raise model.moe.sinkhorn_iterations or the tolerance"));
    }
  }
  return cost * of_columns * of_rows.unsqueeze(1);
}

at::Tensor Router::without_lesser_groups(const at::Tensor& scores) const {
  const std::int64_t tokens = scores.size(0), groups = moe_.num_groups;
  if (groups == 1) return scores;
  const at::Tensor by_group = scores.view({tokens, groups, -1});
  const std::int64_t best = std::min<std::int64_t>(2, by_group.size(2));
  const at::Tensor group_scores = std::get<0>(at::topk(by_group, best, -1)).sum(-1);
  const at::Tensor chosen = std::get<1>(at::topk(group_scores, moe_.top_k_groups, -1));
  const at::Tensor mask = at::zeros_like(group_scores).scatter(1, chosen, 1);
  return (by_group * mask.unsqueeze(2)).view(scores.sizes());
}

/// The same on every TP rank and in a recomputation.
at::Tensor Router::with_jitter(const at::Tensor& tokens) const {
  if (moe_.jitter_eps == 0 || !position_->training) return tokens;
  const std::uint64_t seed = stream_seed(seed_, c10::str(path_, ".jitter step ", position_->step,
                                                         " micro-batch ", position_->microbatch));
  const at::Tensor noise = at::rand(tokens.sizes(), generator_on(device_, seed), tokens.options())
                               .mul_(2 * moe_.jitter_eps)
                               .add_(1 - moe_.jitter_eps);
  return tokens * noise;
}

}  // namespace trellis::trainer
