#include "trainer/verify/tolerance.h"

#include <algorithm>
#include <cmath>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>

namespace trellis::trainer {
namespace {

/// "step 1: gradient of layers.0.weight" is one of "step 1: gradient of". Names have no spaces.
std::string kind_of(const std::string& what) { return what.substr(0, what.rfind(' ')); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double unit_roundoff(const PrecisionSection& precision) {
  if (precision.type == "fp64") return std::ldexp(1.0, -53);
  return precision.weights_bf16 || precision.autocast ? std::ldexp(1.0, -8) : std::ldexp(1.0, -24);
}

RunChanges rounded_otherwise(int run, double unit_roundoff) {
  RunChanges changes;
  if (run == 0) return changes;
  changes.parameters = [run, unit_roundoff](ParameterList& parameters, const ParallelState&) {
    const at::NoGradGuard no_grad;
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(run));
    for (Parameter& parameter : parameters) {
      const at::Tensor values = parameter.tensor.to(at::kDouble);
      const at::Tensor sides = at::rand(values.sizes(), generator, values.options()) * 2 - 1;
      parameter.tensor.copy_(values * (1 + unit_roundoff * sides));
    }
  };
  return changes;
}

Errors noise_of(const std::vector<Errors>& runs) {
  Errors noise;
  for (const Errors& run : runs) {
    for (const auto& [what, error] : run) noise[what] += error * error;
  }
  std::map<std::string, std::vector<double>> kinds;
  for (auto& [what, value] : noise) {
    value = std::sqrt(value / static_cast<double>(runs.size()));
    kinds[kind_of(what)].push_back(value);
  }
  std::map<std::string, double> typical;
  for (auto& [kind, values] : kinds) typical[kind] = median(std::move(values));
  for (auto& [what, value] : noise) value = std::max(value, typical[kind_of(what)]);
  return noise;
}

double times_the_noise(std::int64_t numbers) {
  return std::sqrt(2 * std::log(2 * static_cast<double>(numbers) / kFalseAlarms));
}

}  // namespace trellis::trainer
