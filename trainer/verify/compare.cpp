#include "trainer/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trellis::trainer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative(double difference, double size) {
  const double error = size > 0 ? difference / size : difference;
  return std::isnan(error) ? kInfinity : error;
}

double error_of(double got, double expected) {
  return relative(std::abs(got - expected), std::abs(expected));
}

double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

/// The root of the mean square of all elements of all tensors.
double mean_element(const NamedTensors& tensors) {
  double squares = 0, elements = 0;
  for (const auto& [name, tensor] : tensors) {
    const double norm = norm_of(tensor);
    squares += norm * norm;
    elements += static_cast<double>(tensor.numel());
  }
  return elements > 0 ? std::sqrt(squares / elements) : 0;
}

/// "model.norm.weight" belongs to layer "model.norm".
std::string layer_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

class Differences {
 public:
  using Visit = std::function<void(const Deviation&)>;
  Differences(const RunNumbers& got, const RunNumbers& expected, double vanishing, Visit visit)
      : got_(got), expected_(expected), vanishing_(vanishing), visit_(std::move(visit)) {}

  void visit_all() const {
    for (std::size_t i = 0; i < expected_.steps.size(); ++i) {
      const std::string step = "step " + std::to_string(i + 1) + ": ";
      if (i >= got_.steps.size()) return number(step + "loss", kInfinity, 0);
      visit_step(step, got_.steps[i], expected_.steps[i]);
    }
    const double mean = mean_element(expected_.weights);
    for (const std::string& name : expected_.names)
      tensor("weight ", name, got_.weights, expected_.weights.at(name), mean);
    for (const std::string& name : got_.unequal_copies)
      visit_({"copies of weight " + name, layer_of(name), kInfinity, false, 0});
  }

 private:
  void visit_step(const std::string& step, const ComputedStep& got,
                  const ComputedStep& expected) const {
    number(step + "loss", got.loss, expected.loss);
    const double mean = mean_element(expected.gradients);
    for (auto name = expected_.names.rbegin(); name != expected_.names.rend(); ++name) {
      const auto found = expected.gradients.find(*name);
      if (found != expected.gradients.end()) {
        tensor(step + "gradient of ", *name, got.gradients, found->second, mean);
      } else if (got.gradients.contains(*name)) {
        visit_({step + "gradient of frozen " + *name, layer_of(*name), kInfinity, false, 0});
      }
    }
    number(step + "gradient norm", got.grad_norm, expected.grad_norm);
    for (const auto& [layer, load] : expected.routed_tokens) {
      const auto found = got.routed_tokens.find(layer);
      const bool equal = found != got.routed_tokens.end() &&
                         found->second.assigned == load.assigned && found->second.kept == load.kept;
      visit_({step + "tokens of each expert of layer " + std::to_string(layer), "",
              equal ? 0 : kInfinity, false, 0});
    }
  }

  void number(const std::string& what, double got, double expected) const {
    visit_({what, "", error_of(got, expected), false, 0});
  }

  void tensor(const std::string& what, const std::string& name, const NamedTensors& all,
              const at::Tensor& expected, double mean) const {
    Deviation result{what + name, layer_of(name), kInfinity, false, 0};
    const auto found = all.find(name);
    if (found != all.end() && found->second.sizes() == expected.sizes()) {
      const double norm = norm_of(expected),
                   share = mean * std::sqrt(static_cast<double>(expected.numel()));
      result.by_share = norm < vanishing_ * share;
      result.error = relative(norm_of(found->second.to(at::kDouble) - expected.to(at::kDouble)),
                              result.by_share ? share : norm);
    }
    visit_(result);
  }

  const RunNumbers& got_;
  const RunNumbers& expected_;
  double vanishing_;
  Visit visit_;
};

}  // namespace

Comparison compare(const RunNumbers& got, const RunNumbers& expected, double vanishing,
                   const ToleranceOf& tolerance) {
  Comparison result;
  double worst = -1;
  Differences(got, expected, vanishing, [&](Deviation deviation) {
    deviation.tolerance = tolerance(deviation.what);
    ++result.num_compared;
    result.num_by_share += deviation.by_share ? 1 : 0;
    result.largest_tolerance = std::max(result.largest_tolerance, deviation.tolerance);
    if (deviation.is_bad()) {
      ++result.num_bad;
      if (!result.first_bad) result.first_bad = deviation;
      if (!result.first_bad_tensor && !deviation.layer.empty()) result.first_bad_tensor = deviation;
    }
    if (deviation.error / deviation.tolerance > worst) {
      worst = deviation.error / deviation.tolerance;
      result.worst = deviation;
    }
  }).visit_all();
  return result;
}

std::map<std::string, double> errors_of(const RunNumbers& got, const RunNumbers& expected,
                                        double vanishing) {
  std::map<std::string, double> errors;
  Differences(got, expected, vanishing, [&](const Deviation& deviation) {
    errors[deviation.what] = deviation.error;
  }).visit_all();
  return errors;
}

}  // namespace trellis::trainer
