#include "analysis/calibrate/fit.h"

#include <algorithm>
#include <cmath>

namespace trellis::analysis {
namespace {

constexpr double kSharesDiffer = 0.05;
constexpr std::size_t kRowsForTwo = 3;

double cost(const std::vector<MeasuredParts>& rows, const StepFactors& factors) {
  double sum = 0;
  for (const MeasuredParts& row : rows) {
    const double error = std::log(row.parts.seconds(factors) / row.measured_s);
    sum += error * error;
  }
  return sum;
}

/// Least value of a function of one factor, which has one minimum there: golden section on its
/// logarithm.
template <typename Function>
double best_factor(Function cost_of) {
  const double golden = (std::sqrt(5.0) - 1) / 2;
  double low = std::log(StepFactors::kLeast), high = std::log(StepFactors::kMost);
  double a = high - golden * (high - low), b = low + golden * (high - low);
  double cost_a = cost_of(std::exp(a)), cost_b = cost_of(std::exp(b));
  for (int i = 0; i < 60; ++i) {
    if (cost_a <= cost_b) {
      high = b, b = a, cost_b = cost_a;
      a = high - golden * (high - low), cost_a = cost_of(std::exp(a));
    } else {
      low = a, a = b, cost_a = cost_b;
      b = low + golden * (high - low), cost_b = cost_of(std::exp(b));
    }
  }
  return std::exp((low + high) / 2);
}

bool can_tell_communication(const std::vector<MeasuredParts>& rows) {
  const auto share = [](const MeasuredParts& row) {
    return row.parts.communication_s / row.parts.seconds({});
  };
  const auto [least, most] = std::minmax_element(
      rows.begin(), rows.end(),
      [&](const MeasuredParts& a, const MeasuredParts& b) { return share(a) < share(b); });
  const double differ = share(*most) - share(*least);
  return differ >= 1 || (rows.size() >= kRowsForTwo && differ >= kSharesDiffer);
}

bool has(const std::vector<MeasuredParts>& rows, double StepParts::* part) {
  return std::any_of(rows.begin(), rows.end(),
                     [&](const MeasuredParts& row) { return row.parts.*part > 0; });
}

bool at_bound(double factor) {
  return factor < StepFactors::kLeast * 1.001 || factor > StepFactors::kMost / 1.001;
}

}  // namespace

StepFit fit_factors(const std::vector<MeasuredParts>& rows) {
  StepFit fit;
  if (!has(rows, &StepParts::communication_s)) {
    fit.compute = FactorBasis::kOwn;
    fit.communication = FactorBasis::kUnseen;
    fit.factors.compute = best_factor([&](double factor) { return cost(rows, {factor, 1}); });
  } else if (!has(rows, &StepParts::compute_s)) {
    fit.compute = FactorBasis::kUnseen;
    fit.communication = FactorBasis::kOwn;
    fit.factors.communication = best_factor([&](double factor) { return cost(rows, {1, factor}); });
  } else if (can_tell_communication(rows)) {
    fit.compute = fit.communication = FactorBasis::kOwn;
    // For each factor of compute the best of communication: a valley that is not parallel to an
    // axis is no trap.
    const auto communication_of = [&](double compute) {
      return best_factor([&](double factor) { return cost(rows, {compute, factor}); });
    };
    fit.factors.compute = best_factor(
        [&](double compute) { return cost(rows, {compute, communication_of(compute)}); });
    fit.factors.communication = communication_of(fit.factors.compute);
  } else {
    const double both = best_factor([&](double factor) { return cost(rows, {factor, factor}); });
    fit.factors = {both, both};
  }
  fit.at_bound = at_bound(fit.factors.compute) || at_bound(fit.factors.communication);
  return fit;
}

}  // namespace trellis::analysis
