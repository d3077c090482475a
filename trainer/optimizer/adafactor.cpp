#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/config/optimizer_table.h"
#include "trainer/optimizer/layerwise_rules.h"
#include "trainer/optimizer/tensor_sums.h"

namespace trellis::trainer {
namespace {

enum Number { kBeta2, kOneMinusBeta2, kRate, kWeightDecay };

/// A matrix's second moment is kept only as row means R and column means C; a vector keeps all of
/// v. With b2 = 1 − t^−decay_rate and G = g² + eps[0], each mean over the whole tensor:
///
///   R ← b2·R + (1−b2)·mean over columns of G;  C the same over rows;  u = g / √(R/mean(R) · C);
///     vector: v the same, u = g/√v
///   u ← u / max(1, rms(u)/clip_threshold);  r = lr · max(eps[1], rms(p)) (scale_parameter);
///     u ← r·u;  beta1: u ← m ← b1·m + (1−b1)·u
///   p ← p − wd·r·p − u;  relative_step: lr = min(min_step, 1/√t), min_step = 1e-6·t with
///     warmup_init
class Adafactor final : public UpdateRule {
 public:
  explicit Adafactor(std::map<std::string, double> arguments) : arguments_(std::move(arguments)) {}

  [[nodiscard]] std::vector<OptimizerState> make_states(
      const ShardLayout& layout, const at::TensorOptions& options) const override {
    OptimizerState rows{"exp_avg_sq_row", {}, StateExtent::kRows},
        columns{"exp_avg_sq_col", {}, StateExtent::kColumns}, whole{"exp_avg_sq", {}};
    for (const ShardSlot& slot : layout.slots) {
      check_dimensions(*slot.parameter);
      const bool matrix = is_matrix(slot);
      rows.parts.push_back(at::zeros({matrix ? slot.elements / slot.row_elements : 0}, options));
      columns.parts.push_back(at::zeros({matrix ? slot.row_elements : 0}, options));
      whole.parts.push_back(at::zeros({matrix ? 0 : slot.elements}, options));
    }
    std::vector<OptimizerState> states{std::move(rows), std::move(columns), std::move(whole)};
    if (has_first_moment()) states.push_back({"exp_avg", {at::zeros({layout.elements}, options)}});
    return states;
  }

  [[nodiscard]] std::vector<double> numbers(std::int64_t step, double lr,
                                            double weight_decay) const override {
    const auto t = static_cast<double>(step);
    const double beta2 = 1 - std::pow(t, -arguments_.at("decay_rate"));
    if (is_on("relative_step"))
      lr = std::min(is_on("warmup_init") ? 1e-6 * t : arguments_.at("min_step"), 1 / std::sqrt(t));
    return {beta2, 1 - beta2, lr, weight_decay};
  }

  void apply(const ShardLayout& layout, ShardValues values, const StepNumbers& n) const override {
    const std::vector<at::Tensor> scales = parameter_scales(layout, values.parameters);
    normalize(layout, values, n);
    clip(layout, values.grad);
    for (std::size_t i = 0; i < layout.slots.size(); ++i)
      step_slot(layout.slots[i], values, n, scales[i]);
  }

 private:
  [[nodiscard]] bool is_on(const char* name) const { return arguments_.at(name) != 0; }
  [[nodiscard]] bool has_first_moment() const { return arguments_.at("beta1") >= 0; }
  static bool is_matrix(const ShardSlot& slot) { return slot.parameter->tensor.dim() == 2; }

  static void check_dimensions(const Parameter& parameter) {
    if (parameter.tensor.dim() <= 2) return;
    throw ConfigError(
        c10::str("model.optim.name adafactor: ", parameter.name, " has ", parameter.tensor.dim(),
                 " dimensions; expected vectors and matrices; choose another optimizer"));
  }

  static double whole_rows(const ShardSlot& slot) {
    const Partition& partition = slot.parameter->partition;
    const ExpertRange& experts = slot.parameter->experts;
    const std::int64_t own =
        partition.dim == 0 ? unsharded_size(partition) : slot.parameter->tensor.size(0);
    return static_cast<double>(experts.is_stacked() ? own / experts.count * experts.total : own);
  }
  static double whole_columns(const ShardSlot& slot) {
    const Partition& partition = slot.parameter->partition;
    return static_cast<double>(partition.dim == 1 ? unsharded_size(partition) : slot.row_elements);
  }

  /// Root mean square of each whole tensor.
  static std::vector<at::Tensor> root_mean_squares(const ShardLayout& layout,
                                                   const at::Tensor& shard) {
    std::vector<at::Tensor> sums;
    for (const ShardSlot& slot : layout.slots) sums.push_back(sum_of_squares(shard, slot));
    sum_over_parameters(layout, sums);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const ShardSlot& slot = layout.slots[i];
      sums[i] = sums[i].div(whole_rows(slot) * whole_columns(slot)).sqrt_();
    }
    return sums;
  }

  [[nodiscard]] std::vector<at::Tensor> parameter_scales(const ShardLayout& layout,
                                                         const at::Tensor& parameters) const {
    if (!is_on("scale_parameter")) return std::vector<at::Tensor>(layout.slots.size());
    std::vector<at::Tensor> scales = root_mean_squares(layout, parameters);
    for (at::Tensor& scale : scales) scale.clamp_min_(arguments_.at("eps_1"));
    return scales;
  }

  /// values.grad becomes u.
  void normalize(const ShardLayout& layout, ShardValues& values, const StepNumbers& n) const {
    std::vector<at::Tensor> row_sums(layout.slots.size()), column_sums(layout.slots.size()),
        row_means(layout.slots.size());
    for (std::size_t i = 0; i < layout.slots.size(); ++i) {
      const ShardSlot& slot = layout.slots[i];
      const at::Tensor g = rows_of(values.grad, slot);
      const at::Tensor squares = g.square().add_(arguments_.at("eps_0"));
      if (is_matrix(slot)) {
        row_sums[i] = squares.sum(1);
        column_sums[i] = weighted_rows(squares, slot).sum(0);
      } else {
        at::Tensor v = values.states[2].parts[i].narrow(0, 0, slot.valid_elements());
        v.mul_(n[kBeta2]).addcmul_(squares.view(-1), n[kOneMinusBeta2]);
        g.mul_(v.rsqrt().view_as(g));
      }
    }
    sum_over_columns(layout, row_sums);
    sum_over_rows(layout, column_sums);
    for (std::size_t i = 0; i < layout.slots.size(); ++i) {
      if (is_matrix(layout.slots[i]))
        row_means[i] = update_factors(layout.slots[i], i, values, row_sums[i], column_sums[i], n);
    }
    sum_over_rows(layout, row_means);
    for (std::size_t i = 0; i < layout.slots.size(); ++i) {
      const ShardSlot& slot = layout.slots[i];
      if (!is_matrix(slot)) continue;
      const at::Tensor rows = values.states[0].parts[i].narrow(0, 0, slot.rows);
      const at::Tensor row_factor = rows.div(row_means[i].div(whole_rows(slot))).rsqrt_();
      rows_of(values.grad, slot)
          .mul_(row_factor.unsqueeze(1))
          .mul_(values.states[1].parts[i].rsqrt().unsqueeze(0));
    }
  }

  /// Returns the sum of this rank's row means.
  static at::Tensor update_factors(const ShardSlot& slot, std::size_t i, ShardValues& values,
                                   const at::Tensor& row_sum, const at::Tensor& column_sum,
                                   const StepNumbers& n) {
    at::Tensor rows = values.states[0].parts[i].narrow(0, 0, slot.rows);
    rows.mul_(n[kBeta2]).addcmul_(row_sum.div(whole_columns(slot)), n[kOneMinusBeta2]);
    values.states[1].parts[i].mul_(n[kBeta2]).addcmul_(column_sum.div(whole_rows(slot)),
                                                       n[kOneMinusBeta2]);
    return weighted_rows(rows, slot).sum();
  }

  void clip(const ShardLayout& layout, const at::Tensor& update) const {
    const std::vector<at::Tensor> sizes = root_mean_squares(layout, update);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      rows_of(update, layout.slots[i])
          .div_(sizes[i].div(arguments_.at("clip_threshold")).clamp_min_(1));
    }
  }

  void step_slot(const ShardSlot& slot, ShardValues& values, const StepNumbers& n,
                 const at::Tensor& scale) const {
    const at::Tensor rate = scale.defined() ? scale.mul(n[kRate]) : n[kRate];
    at::Tensor update = rows_of(values.grad, slot).mul_(rate), p = rows_of(values.parameters, slot);
    if (has_first_moment()) {
      const double beta1 = arguments_.at("beta1");
      update = rows_of(values.states[3].parts[0], slot).mul_(beta1).add_(update, 1 - beta1);
    }
    p.addcmul_(p, rate.mul(n[kWeightDecay]), -1);
    p.sub_(update);
  }

  std::map<std::string, double> arguments_;
};

}  // namespace

std::shared_ptr<const UpdateRule> make_adafactor(const OptimSection& optim) {
  return std::make_shared<Adafactor>(optimizer_arguments(optim));
}

std::shared_ptr<const UpdateRule> make_layerwise_rule(const OptimSection& optim) {
  if (optim.name == "novograd") return make_novograd(optim);
  if (optim.name == "adafactor") return make_adafactor(optim);
  return nullptr;
}

}  // namespace trellis::trainer
