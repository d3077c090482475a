#include "analysis/accuracy/training_fit.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace trellis::analysis {
namespace {

constexpr double kMostSeconds = 3;  ///< of megatron_step, as sim/configs states

sim::SoftwareConfig with_megatron_step(sim::SoftwareConfig software, double seconds) {
  software.megatron_step = Picoseconds(static_cast<std::int64_t>(seconds * 1e12));
  return software;
}

double cost(const std::vector<FitRow>& rows, const sim::SoftwareConfig& software) {
  double sum = 0, worst = 0;
  for (const FitRow& row : rows) {
    const double error = std::abs(std::log(expected_seconds(row.step, software) / row.published_s));
    sum += error;
    worst = std::max(worst, error);
  }
  return sum / static_cast<double>(rows.size()) + 0.1 * worst;
}

}  // namespace

double expected_seconds(const SimulatedRow& step, const sim::SoftwareConfig& numbers) {
  sim::SoftwareConfig software = numbers;
  software.stack = step.software.stack;
  return step.seconds + to_seconds(software.step_overhead()) -
         to_seconds(step.software.step_overhead());
}

sim::SoftwareConfig fit_software(const std::vector<FitRow>& rows, sim::SoftwareConfig start) {
  const bool taken = std::any_of(rows.begin(), rows.end(), [](const FitRow& row) {
    return row.step.software.stack == sim::SoftwareStack::kMegatron;
  });
  if (!taken) return start;
  constexpr int kPoints = 300;
  sim::SoftwareConfig best = start;
  double least = cost(rows, best);
  for (int i = 0; i <= kPoints; ++i) {
    const sim::SoftwareConfig tried = with_megatron_step(start, kMostSeconds * i / kPoints);
    const double now = cost(rows, tried);
    if (now >= least) continue;
    least = now;
    best = tried;
  }
  return best;
}

std::vector<double> leave_one_family_out(const std::vector<FitRow>& rows) {
  std::map<std::string, sim::SoftwareConfig> fitted;
  for (const FitRow& row : rows) fitted.try_emplace(row.family);
  for (auto& [family, software] : fitted) {
    std::vector<FitRow> others;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(others),
                 [&](const FitRow& row) { return row.family != family; });
    software = fit_software(others, rows.front().step.software);
  }
  std::vector<double> errors;
  for (const FitRow& row : rows)
    errors.push_back(expected_seconds(row.step, fitted.at(row.family)) / row.published_s - 1);
  return errors;
}

}  // namespace trellis::analysis
