#include "trainer/optimizer/elementwise_rules.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

#include "trainer/config/optimizer_table.h"

namespace trellis::trainer {
namespace {

using Arguments = std::map<std::string, double>;

/// Operands of a formula: p and g, its states in order, and the numbers of the step. Formulas
/// below: b1, b2 betas, t the step, wd the decay.
struct Operands {
  at::Tensor& p;
  at::Tensor& g;
  std::vector<at::Tensor> state;
  const StepNumbers& n;
};

class ElementwiseRule : public UpdateRule {
 public:
  ElementwiseRule(std::vector<std::pair<std::string, double>> states)
      : states_(std::move(states)) {}

  [[nodiscard]] std::vector<OptimizerState> make_states(
      const ShardLayout& layout, const at::TensorOptions& options) const final {
    std::vector<OptimizerState> made;
    for (const auto& [name, value] : states_)
      made.push_back({name, {at::full({layout.elements}, value, options)}});
    return made;
  }

  void apply(const ShardLayout&, ShardValues values, const StepNumbers& numbers) const final {
    const std::int64_t elements = values.parameters.numel();
    const std::int64_t step = values.parameters.device().is_cpu() ? kElementsInCache : elements;
    for (std::int64_t first = 0; first < elements; first += step) {
      const auto part = [&](const at::Tensor& whole) {
        return whole.narrow(0, first, std::min(step, elements - first));
      };
      at::Tensor p = part(values.parameters), g = part(values.grad);
      Operands operands{p, g, {}, numbers};
      for (const OptimizerState& state : values.states)
        operands.state.push_back(part(state.parts.front()));
      update(operands);
    }
  }

 protected:
  virtual void update(Operands& x) const = 0;

 private:
  /// On the host a formula is a dozen passes over its operands, which stay in a core's cache when
  /// there are few of them at a time.
  static constexpr std::int64_t kElementsInCache = 1 << 16;
  std::vector<std::pair<std::string, double>> states_;  ///< name, initial value
};

std::vector<std::pair<std::string, double>> moments(bool amsgrad) {
  if (amsgrad) return {{"exp_avg", 0}, {"exp_avg_sq", 0}, {"max_exp_avg_sq", 0}};
  return {{"exp_avg", 0}, {"exp_avg_sq", 0}};
}

void update_moments(Operands& x, double beta1, double beta2) {
  x.state[0].mul_(beta1).add_(x.g, 1 - beta1);
  x.state[1].mul_(beta2).addcmul_(x.g, x.g, 1 - beta2);
}

/// adamw: p ← p·(1 − lr·wd) − lr/(1−b1ᵗ) · m / (√(v / (1−b2ᵗ)) + eps).  adam: the decay is added to
/// the gradient instead. One operation except for the decay, which differs between groups.
class Adam final : public ElementwiseRule {
 public:
  Adam(const OptimSection& optim, bool decoupled, bool amsgrad)
      : ElementwiseRule(moments(amsgrad)),
        beta1_(*optim.beta1),
        beta2_(*optim.beta2),
        eps_(*optim.eps),
        decoupled_(decoupled),
        amsgrad_(amsgrad) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr,
                                            double weight_decay) const override {
    return {decoupled_ ? 1 - lr * weight_decay : weight_decay, lr, static_cast<double>(step)};
  }

 protected:
  void update(Operands& x) const override {
    if (decoupled_) {
      x.p.mul_(x.n[0]);
    } else {
      x.g.addcmul_(x.p, x.n[0]);
    }
    const at::TensorList largest = amsgrad_ ? at::TensorList(x.state[2]) : at::TensorList();
    at::_fused_adamw_(x.p, x.g, x.state[0], x.state[1], largest, x.n[2], x.n[1], beta1_, beta2_, 0,
                      eps_, amsgrad_, false);
  }

 private:
  double beta1_, beta2_, eps_;
  bool decoupled_, amsgrad_;
};

/// p ← p − lr·√(1−b2ᵗ)/(1−b1ᵗ) · m / (√v + eps), then p ← p − lr·wd·p: Hugging Face's former AdamW,
/// with states that stay fp32.
class AdamWFp32OptState final : public ElementwiseRule {
 public:
  AdamWFp32OptState(const OptimSection& optim, bool correct_bias)
      : ElementwiseRule(moments(false)),
        beta1_(*optim.beta1),
        beta2_(*optim.beta2),
        eps_(*optim.eps),
        correct_bias_(correct_bias) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr,
                                            double weight_decay) const override {
    const auto t = static_cast<double>(step);
    const double correction =
        correct_bias_ ? std::sqrt(1 - std::pow(beta2_, t)) / (1 - std::pow(beta1_, t)) : 1;
    return {-lr * correction, 1 - lr * weight_decay};
  }
  [[nodiscard]] bool fp32_states() const override { return true; }

 protected:
  void update(Operands& x) const override {
    update_moments(x, beta1_, beta2_);
    at::Tensor denominator = at::sqrt(x.state[1]).add_(eps_);
    x.p.addcmul_(denominator.reciprocal_().mul_(x.state[0]), x.n[0]);
    x.p.mul_(x.n[1]);
  }

 private:
  double beta1_, beta2_, eps_;
  bool correct_bias_;
};

/// g ← g + wd·p;  b ← momentum·b + (1−dampening)·g, but b = g at t = 1;  g ← b, or g + momentum·b
/// (nesterov);  p ← p − lr·g.
class Sgd final : public ElementwiseRule {
 public:
  explicit Sgd(const Arguments& arguments)
      : ElementwiseRule(arguments.at("momentum") > 0
                            ? std::vector<std::pair<std::string, double>>{{"momentum_buffer", 0}}
                            : std::vector<std::pair<std::string, double>>{}),
        momentum_(arguments.at("momentum")),
        dampening_(arguments.at("dampening")),
        nesterov_(arguments.at("nesterov") != 0) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr,
                                            double weight_decay) const override {
    return {weight_decay, -lr, step == 1 ? 1 : 1 - dampening_};
  }

 protected:
  void update(Operands& x) const override {
    x.g.addcmul_(x.p, x.n[0]);
    if (momentum_ > 0) {
      x.state[0].mul_(momentum_).addcmul_(x.g, x.n[2]);
      if (nesterov_) x.g.add_(x.state[0], momentum_);
    }
    x.p.addcmul_(momentum_ > 0 && !nesterov_ ? x.state[0] : x.g, x.n[1]);
  }

 private:
  double momentum_, dampening_;
  bool nesterov_;
};

/// s ← rho·s + (1−rho)·g²;  d = √(a + eps)/√(s + eps)·g;  a ← rho·a + (1−rho)·d²;  p ← p − lr·d.
class Adadelta final : public ElementwiseRule {
 public:
  Adadelta(const OptimSection& optim, const Arguments& arguments)
      : ElementwiseRule({{"square_avg", 0}, {"acc_delta", 0}}),
        rho_(arguments.at("rho")),
        eps_(*optim.eps) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t, double lr,
                                            double weight_decay) const override {
    return {weight_decay, -lr};
  }

 protected:
  void update(Operands& x) const override {
    x.g.addcmul_(x.p, x.n[0]);
    x.state[0].mul_(rho_).addcmul_(x.g, x.g, 1 - rho_);
    const at::Tensor delta =
        x.state[1].add(eps_).sqrt_().div_(x.state[0].add(eps_).sqrt_()).mul_(x.g);
    x.state[1].mul_(rho_).addcmul_(delta, delta, 1 - rho_);
    x.p.addcmul_(delta, x.n[1]);
  }

 private:
  double rho_, eps_;
};

/// u ← max(b2·u, |g| + eps);  p ← p − lr/(1−b1ᵗ) · m / u.
class Adamax final : public ElementwiseRule {
 public:
  explicit Adamax(const OptimSection& optim)
      : ElementwiseRule({{"exp_avg", 0}, {"exp_inf", 0}}),
        beta1_(*optim.beta1),
        beta2_(*optim.beta2),
        eps_(*optim.eps) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr,
                                            double weight_decay) const override {
    return {weight_decay, -lr / (1 - std::pow(beta1_, static_cast<double>(step)))};
  }

 protected:
  void update(Operands& x) const override {
    x.g.addcmul_(x.p, x.n[0]);
    x.state[0].mul_(beta1_).add_(x.g, 1 - beta1_);
    at::maximum_out(x.state[1], x.state[1].mul_(beta2_), x.g.abs_().add_(eps_));
    x.p.addcmul_(x.state[0].div(x.state[1]), x.n[1]);
  }

 private:
  double beta1_, beta2_, eps_;
};

/// s ← s + g²;  p ← p − lr/(1 + (t−1)·lr_decay) · g / (√s + eps).
class Adagrad final : public ElementwiseRule {
 public:
  Adagrad(const OptimSection& optim, const Arguments& arguments)
      : ElementwiseRule({{"sum", arguments.at("initial_accumulator_value")}}),
        lr_decay_(arguments.at("lr_decay")),
        eps_(*optim.eps) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr,
                                            double weight_decay) const override {
    return {weight_decay, -lr / (1 + static_cast<double>(step - 1) * lr_decay_)};
  }

 protected:
  void update(Operands& x) const override {
    x.g.addcmul_(x.p, x.n[0]);
    x.state[0].addcmul_(x.g, x.g);
    const at::Tensor denominator = at::sqrt(x.state[0]).add_(eps_);
    x.p.addcmul_(x.g.div_(denominator), x.n[1]);
  }

 private:
  double lr_decay_, eps_;
};

std::vector<std::pair<std::string, double>> rmsprop_states(bool momentum, bool centered) {
  std::vector<std::pair<std::string, double>> states{{"square_avg", 0}};
  if (momentum) states.emplace_back("momentum_buffer", 0);
  if (centered) states.emplace_back("grad_avg", 0);
  return states;
}

/// s ← alpha·s + (1−alpha)·g²;  d = g / (√(s − a²) + eps), a the mean gradient when centered;  b ←
/// momentum·b + d;  p ← p − lr·b.
class RmsProp final : public ElementwiseRule {
 public:
  RmsProp(const OptimSection& optim, const Arguments& arguments)
      : ElementwiseRule(
            rmsprop_states(arguments.at("momentum") > 0, arguments.at("centered") != 0)),
        alpha_(arguments.at("alpha")),
        momentum_(arguments.at("momentum")),
        eps_(*optim.eps),
        centered_(arguments.at("centered") != 0) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t, double lr,
                                            double weight_decay) const override {
    return {weight_decay, -lr};
  }

 protected:
  void update(Operands& x) const override {
    x.g.addcmul_(x.p, x.n[0]);
    x.state[0].mul_(alpha_).addcmul_(x.g, x.g, 1 - alpha_);
    at::Tensor average;
    if (centered_) {
      at::Tensor& mean = x.state.back();
      mean.mul_(alpha_).add_(x.g, 1 - alpha_);
      average = x.state[0].addcmul(mean, mean, -1).sqrt_().add_(eps_);
    } else {
      average = at::sqrt(x.state[0]).add_(eps_);
    }
    x.g.div_(average);
    if (momentum_ > 0) x.state[1].mul_(momentum_).add_(x.g);
    x.p.addcmul_(momentum_ > 0 ? x.state[1] : x.g, x.n[1]);
  }

 private:
  double alpha_, momentum_, eps_;
  bool centered_;
};

/// Only signs count. s = sign(g·previous g): the step size grows by etas[1] when s = 1, falls by
/// etas[0] when s = −1, where the element then rests for a step;  p ← p − sign(g)·step size. At t =
/// 1 the step size is lr.
class Rprop final : public ElementwiseRule {
 public:
  explicit Rprop(const Arguments& arguments)
      : ElementwiseRule({{"prev", 0}, {"step_size", 0}}),
        smaller_(arguments.at("etas_0")),
        larger_(arguments.at("etas_1")),
        lowest_(arguments.at("step_sizes_0")),
        highest_(arguments.at("step_sizes_1")) {}

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr, double) const override {
    return {step == 1 ? lr : 0};
  }

 protected:
  void update(Operands& x) const override {
    x.state[1].add_(x.n[0]);
    const at::Tensor change = x.g.mul(x.state[0]).sign_();
    const at::Tensor flipped = change.lt(0);
    at::Tensor factor =
        at::ones_like(change).masked_fill_(change.gt(0), larger_).masked_fill_(flipped, smaller_);
    x.state[1].mul_(factor).clamp_(lowest_, highest_);
    x.g.masked_fill_(flipped, 0);
    x.p.addcmul_(at::sign(x.g), x.state[1], -1);
    x.state[0].copy_(x.g);
  }

 private:
  double smaller_, larger_, lowest_, highest_;
};

}  // namespace

std::shared_ptr<const UpdateRule> make_elementwise_rule(const OptimSection& optim) {
  const Arguments arguments = optimizer_arguments(optim);
  if (optim.name == "adamw")
    return std::make_shared<Adam>(optim, true, arguments.at("amsgrad") != 0);
  if (optim.name == "adam")
    return std::make_shared<Adam>(optim, false, arguments.at("amsgrad") != 0);
  if (optim.name == "adamw_fp32OptState")
    return std::make_shared<AdamWFp32OptState>(optim, arguments.at("correct_bias") != 0);
  if (optim.name == "sgd") return std::make_shared<Sgd>(arguments);
  if (optim.name == "adadelta") return std::make_shared<Adadelta>(optim, arguments);
  if (optim.name == "adamax") return std::make_shared<Adamax>(optim);
  if (optim.name == "adagrad") return std::make_shared<Adagrad>(optim, arguments);
  if (optim.name == "rmsprop") return std::make_shared<RmsProp>(optim, arguments);
  if (optim.name == "rprop") return std::make_shared<Rprop>(arguments);
  return nullptr;
}

}  // namespace trellis::trainer
