#include "trainer/verify/compare.h"

#include <cmath>
#include <limits>

namespace trellis::trainer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative(double difference, double size) {
  const double error = size > 0 ? difference / size : difference;
  return std::isnan(error) ? kInfinity : error;
}

double error_of(double got, double expected) { return relative(std::abs(got - expected), std::abs(expected)); }

double error_of(const NamedTensors& got, const std::string& name, const at::Tensor& expected) {
  const auto found = got.find(name);
  if (found == got.end() || found->second.sizes() != expected.sizes()) return kInfinity;
  const at::Tensor wide = expected.to(at::kDouble);
  return relative((found->second.to(at::kDouble) - wide).norm().item<double>(), wide.norm().item<double>());
}

/// "model.norm.weight" belongs to layer "model.norm".
std::string layer_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

using Visit = std::function<void(const std::string& what, const std::string& layer, double error)>;

void for_each_error(const RunNumbers& got, const RunNumbers& expected, const Visit& visit) {
  for (std::size_t i = 0; i < expected.steps.size(); ++i) {
    const std::string step = "step " + std::to_string(i + 1) + ": ";
    if (i >= got.steps.size()) return visit(step + "loss", "", kInfinity);
    const ComputedStep &mine = got.steps[i], &theirs = expected.steps[i];
    visit(step + "loss", "", error_of(mine.loss, theirs.loss));
    for (auto name = expected.names.rbegin(); name != expected.names.rend(); ++name) {
      visit(step + "gradient of " + *name, layer_of(*name), error_of(mine.gradients, *name, theirs.gradients.at(*name)));
    }
    visit(step + "gradient norm", "", error_of(mine.grad_norm, theirs.grad_norm));
  }
  for (const std::string& name : expected.names) {
    visit("weight " + name, layer_of(name), error_of(got.weights, name, expected.weights.at(name)));
  }
  for (const std::string& name : got.unequal_copies) visit("copies of weight " + name, layer_of(name), kInfinity);
}

}  // namespace

Comparison compare(const RunNumbers& got, const RunNumbers& expected, const ToleranceOf& tolerance) {
  Comparison result;
  double worst = -1;
  for_each_error(got, expected, [&](const std::string& what, const std::string& layer, double error) {
    const Deviation deviation{what, layer, error, tolerance(what)};
    ++result.num_compared;
    if (deviation.is_bad()) {
      ++result.num_bad;
      if (!result.first_bad) result.first_bad = deviation;
    }
    if (error / deviation.tolerance > worst) {
      worst = error / deviation.tolerance;
      result.worst = deviation;
    }
  });
  return result;
}

std::map<std::string, double> errors_of(const RunNumbers& got, const RunNumbers& expected) {
  std::map<std::string, double> errors;
  for_each_error(got, expected, [&](const std::string& what, const std::string&, double error) { errors[what] = error; });
  return errors;
}

}  // namespace trellis::trainer
