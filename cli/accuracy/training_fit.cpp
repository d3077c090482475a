#include "cli/accuracy/training_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace trellis::cli {
namespace {

constexpr double kPicosecond = 1e-12;

/// One number under fit, as a plain double, with the range that sim/configs states.
struct Knob {
  double low, high;
  double (*get)(const sim::SoftwareConfig&);
  void (*set)(sim::SoftwareConfig&, double);
  bool (*taken_by)(const SimulatedStep&);
};

const std::array<Knob, 2>& knobs() {
  using S = sim::SoftwareConfig;
  static const std::array<Knob, 2> kAll{{
      {0, 3, [](const S& s) { return to_seconds(s.megatron_step); }, [](S& s, double v) { s.megatron_step = Picoseconds(static_cast<std::int64_t>(v / kPicosecond)); },
       [](const SimulatedStep& r) { return r.path == SoftwarePath::kMegatron; }},
      {0.9, 2, [](const S& s) { return s.fine_tuning_stretch; }, [](S& s, double v) { s.fine_tuning_stretch = v; },
       [](const SimulatedStep& r) { return r.path == SoftwarePath::kFineTuning; }},
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

SoftwarePath software_path(const std::string& path) {
  if (path == "megatron-lm" || path == "nemo") return SoftwarePath::kMegatron;
  return path == "optimum-neuron" ? SoftwarePath::kFineTuning : SoftwarePath::kPlain;
}

double expected_seconds(const SimulatedStep& step, const sim::SoftwareConfig& software) {
  double seconds = step.seconds;
  if (step.nodes > 1) seconds *= 1 + step.programs_share * (software.multi_node_stretch / step.software.multi_node_stretch - 1);
  if (step.path == SoftwarePath::kFineTuning) seconds *= software.fine_tuning_stretch;
  if (step.path == SoftwarePath::kMegatron) seconds += to_seconds(software.megatron_step);
  return seconds;
}

/// All numbers together on a grid: one after the other they would stop where two of them explain the same rows.
sim::SoftwareConfig fit_software(const std::vector<FitRow>& rows, sim::SoftwareConfig best) {
  if (rows.empty()) return best;
  constexpr int kRounds = 9, kPoints = 40;
  constexpr double kNarrower = 0.45;
  double least = cost(rows, best), width = 1;
  std::array<bool, 2> free{};
  for (std::size_t k = 0; k < free.size(); ++k) free[k] = std::any_of(rows.begin(), rows.end(), [&](const FitRow& row) { return knobs()[k].taken_by(row.step); });
  for (int round = 0; round < kRounds; ++round, width *= kNarrower) {
    const sim::SoftwareConfig centre = best;
    const auto point = [&](std::size_t k, int i) {
      const Knob& knob = knobs()[k];
      const double half = (knob.high - knob.low) * width / 2, middle = round == 0 ? (knob.low + knob.high) / 2 : knob.get(centre);
      const double from = std::max(knob.low, middle - half), to = std::min(knob.high, middle + half);
      return from + (to - from) * i / kPoints;
    };
    const auto last = [&](std::size_t k) { return free[k] ? kPoints : 0; };
    for (int a = 0; a <= last(0); ++a) {
      for (int b = 0; b <= last(1); ++b) {
        sim::SoftwareConfig tried = centre;
        if (free[0]) knobs()[0].set(tried, point(0, a));
        if (free[1]) knobs()[1].set(tried, point(1, b));
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
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(others), [&](const FitRow& row) { return row.family != family; });
    software = fit_software(others, rows.front().step.software);
  }
  std::vector<double> errors;
  for (const FitRow& row : rows) errors.push_back(expected_seconds(row.step, fitted.at(row.family)) / row.published_s - 1);
  return errors;
}

}  // namespace trellis::cli
