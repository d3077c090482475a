#include "analysis/accuracy/training_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace trellis::analysis {
namespace {

constexpr double kPicosecond = 1e-12;

/// One number under fit, as a plain double, with the range that sim/configs states.
struct Knob {
  double low, high;
  double (*get)(const sim::SoftwareConfig&);
  void (*set)(sim::SoftwareConfig&, double);
  bool (*taken_by)(const SimulatedRow&);
};

constexpr std::size_t kKnobs = 2;

const std::array<Knob, kKnobs>& knobs() {
  using S = sim::SoftwareConfig;
  using Stack = sim::SoftwareStack;
  static const std::array<Knob, kKnobs> kAll{{
      {0, 3, [](const S& s) { return to_seconds(s.megatron_step); },
       [](S& s, double v) {
         s.megatron_step = Picoseconds(static_cast<std::int64_t>(v / kPicosecond));
       },
       [](const SimulatedRow& r) { return r.software.stack == Stack::kMegatron; }},
      {0.9, 2, [](const S& s) { return s.fine_tuning_stretch; },
       [](S& s, double v) { s.fine_tuning_stretch = v; },
       [](const SimulatedRow& r) { return r.software.stack == Stack::kOptimumNeuron; }},
  }};
  return kAll;
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
  const double programs =
      software.program_stretch(step.nodes) / step.software.program_stretch(step.nodes);
  const double optimizer =
      software.optimizer_stretch(step.nodes) / step.software.optimizer_stretch(step.nodes);
  return step.seconds *
             (1 + step.programs_share * (programs - 1) + step.optimizer_share * (optimizer - 1)) +
         to_seconds(software.step_overhead()) - to_seconds(step.software.step_overhead());
}

/// All numbers together on a grid: one after the other they would stop where two of them explain
/// the same rows.
sim::SoftwareConfig fit_software(const std::vector<FitRow>& rows, sim::SoftwareConfig best) {
  if (rows.empty()) return best;
  constexpr int kRounds = 9, kPoints = 40;
  constexpr double kNarrower = 0.45;
  double least = cost(rows, best), width = 1;
  std::array<bool, kKnobs> free{};
  for (std::size_t k = 0; k < kKnobs; ++k)
    free[k] = std::any_of(rows.begin(), rows.end(),
                          [&](const FitRow& row) { return knobs()[k].taken_by(row.step); });
  for (int round = 0; round < kRounds; ++round, width *= kNarrower) {
    const sim::SoftwareConfig centre = best;
    const auto set = [&](sim::SoftwareConfig& tried, std::size_t k, int i) {
      const Knob& knob = knobs()[k];
      const double half = (knob.high - knob.low) * width / 2,
                   middle = round == 0 ? (knob.low + knob.high) / 2 : knob.get(centre);
      const double from = std::max(knob.low, middle - half),
                   to = std::min(knob.high, middle + half);
      if (free[k]) knob.set(tried, from + (to - from) * i / kPoints);
    };
    const auto last = [&](std::size_t k) { return free[k] ? kPoints : 0; };
    for (int a = 0; a <= last(0); ++a) {
      for (int b = 0; b <= last(1); ++b) {
        sim::SoftwareConfig tried = centre;
        set(tried, 0, a), set(tried, 1, b);
        const double now = cost(rows, tried);
        if (now >= least) continue;
        least = now;
        best = tried;
      }
    }
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
