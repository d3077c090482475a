#include "analysis/accuracy/training_fit.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace trellis::analysis {
namespace {

constexpr double kMostSeconds = 3;  ///< of step_overhead, as sim/configs/software states

bool takes_it(const FitRow& row) { return row.step.software.stack == kFittedStack; }

double cost(const std::vector<FitRow>& rows, Picoseconds overhead) {
  double sum = 0, worst = 0;
  for (const FitRow& row : rows) {
    const double error = std::abs(std::log(expected_seconds(row.step, overhead) / row.published_s));
    sum += error;
    worst = std::max(worst, error);
  }
  return sum / static_cast<double>(rows.size()) + 0.1 * worst;
}

}  // namespace

double expected_seconds(const SimulatedRow& step, Picoseconds overhead) {
  const sim::SoftwareConfig& software = step.software;
  if (software.stack != kFittedStack) return step.seconds;
  return step.seconds + to_seconds(overhead) - to_seconds(software.step_overhead);
}

Picoseconds fit_step_overhead(const std::vector<FitRow>& rows, Picoseconds start) {
  if (std::ranges::none_of(rows, takes_it)) return start;
  constexpr int kPoints = 300;
  Picoseconds best = start;
  double least = cost(rows, best);
  for (int i = 0; i <= kPoints; ++i) {
    const Picoseconds tried(static_cast<std::int64_t>(kMostSeconds * i / kPoints * 1e12));
    const double now = cost(rows, tried);
    if (now >= least) continue;
    least = now;
    best = tried;
  }
  return best;
}

std::vector<double> leave_one_family_out(const std::vector<FitRow>& rows) {
  const auto taker = std::ranges::find_if(rows, takes_it);
  const Picoseconds used = taker == rows.end() ? Picoseconds() : taker->step.software.step_overhead;
  std::map<std::string, Picoseconds> fitted;
  for (const FitRow& row : rows) fitted.try_emplace(row.family);
  for (auto& [family, overhead] : fitted) {
    std::vector<FitRow> others;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(others),
                 [&](const FitRow& row) { return row.family != family; });
    overhead = fit_step_overhead(others, used);
  }
  std::vector<double> errors;
  for (const FitRow& row : rows)
    errors.push_back(expected_seconds(row.step, fitted.at(row.family)) / row.published_s - 1);
  return errors;
}

}  // namespace trellis::analysis
