#include <map>

#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "trainer/config/optimizer_table.h"
#include "trainer/optimizer/layerwise_rules.h"
#include "trainer/optimizer/tensor_sums.h"

namespace trellis::trainer {
namespace {

/// One second moment per tensor, of its gradient's norm. With N = |g|² of the whole tensor:
///
///   v ← N at the first step (while v is 0), then b2·v + (1−b2)·N;
///     amsgrad: the largest v so far takes its place
///   g ← g/(√v + eps) + wd·p;  grad_averaging: g ← (1−b1)·g;  m ← b1·m + g
///   p ← p − lr·m;  luc: the rate is at most luc_trust·|p| / (|m| + luc_eps)
class Novograd final : public UpdateRule {
 public:
  Novograd(const OptimSection& optim, const std::map<std::string, double>& arguments)
      : beta1_(*optim.beta1),
        beta2_(*optim.beta2),
        eps_(*optim.eps),
        averaging_(arguments.at("grad_averaging") != 0),
        amsgrad_(arguments.at("amsgrad") != 0),
        luc_(arguments.at("luc") != 0),
        luc_trust_(arguments.at("luc_trust")),
        luc_eps_(arguments.at("luc_eps")) {}

  [[nodiscard]] std::vector<OptimizerState> make_states(
      const ShardLayout& layout, const at::TensorOptions& options) const override {
    const auto one_per_tensor = [&] {
      return at::zeros({static_cast<std::int64_t>(layout.slots.size())}, options);
    };
    std::vector<OptimizerState> states{{"exp_avg", {at::zeros({layout.elements}, options)}},
                                       {"exp_avg_sq", {one_per_tensor()}, StateExtent::kTensor}};
    if (amsgrad_) states.push_back({"max_exp_avg_sq", {one_per_tensor()}, StateExtent::kTensor});
    return states;
  }

  [[nodiscard]] std::vector<double> numbers(std::int64_t, double lr,
                                            double weight_decay) const override {
    return {weight_decay, lr};
  }

  void apply(const ShardLayout& layout, ShardValues values, const StepNumbers& n) const override {
    at::Tensor& g = values.grad;
    at::Tensor& m = values.states[0].parts[0];
    const at::Tensor inverse = second_moment(layout, values).sqrt().add_(eps_).reciprocal_();
    for (std::size_t i = 0; i < layout.slots.size(); ++i) {
      rows_of(g, layout.slots[i]).mul_(inverse.select(0, static_cast<std::int64_t>(i)));
    }
    g.addcmul_(values.parameters, n[0]);
    if (averaging_) g.mul_(1 - beta1_);
    m.mul_(beta1_).add_(g);
    if (!luc_) {
      values.parameters.addcmul_(m, n[1], -1);
      return;
    }
    const at::Tensor rates = clipped_rates(layout, values.parameters, m, n[1]);
    for (std::size_t i = 0; i < layout.slots.size(); ++i) {
      rows_of(values.parameters, layout.slots[i])
          .addcmul_(rows_of(m, layout.slots[i]), rates.select(0, static_cast<std::int64_t>(i)), -1);
    }
  }

 private:
  /// Squared norms of whole tensors: [slots].
  static at::Tensor squared_norms(const ShardLayout& layout, const at::Tensor& shard) {
    std::vector<at::Tensor> sums;
    for (const ShardSlot& slot : layout.slots) sums.push_back(sum_of_squares(shard, slot));
    sum_over_parameters(layout, sums);
    return at::stack(sums);
  }

  at::Tensor second_moment(const ShardLayout& layout, ShardValues& values) const {
    const at::Tensor norms = squared_norms(layout, values.grad);
    at::Tensor& v = values.states[1].parts[0];
    v.copy_(at::where(v.eq(0), norms, v.mul(beta2_).add_(norms, 1 - beta2_)));
    if (!amsgrad_) return v;
    at::Tensor& largest = values.states[2].parts[0];
    return largest.copy_(at::maximum(largest, v));
  }

  at::Tensor clipped_rates(const ShardLayout& layout, const at::Tensor& p, const at::Tensor& m,
                           const at::Tensor& lr) const {
    const at::Tensor trusted = squared_norms(layout, p)
                                   .sqrt_()
                                   .mul_(luc_trust_)
                                   .div_(squared_norms(layout, m).sqrt_().add_(luc_eps_));
    return at::minimum(trusted, lr);
  }

  double beta1_, beta2_, eps_;
  bool averaging_, amsgrad_, luc_;
  double luc_trust_, luc_eps_;
};

}  // namespace

std::shared_ptr<const UpdateRule> make_novograd(const OptimSection& optim) {
  return std::make_shared<Novograd>(optim, optimizer_arguments(optim));
}

}  // namespace trellis::trainer
