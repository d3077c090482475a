#include "analysis/cost/goodput.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/cost/amounts.h"
#include "analysis/cost/run_cost.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

/// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  double exponential(double mean) {
    constexpr double kUnit = 0x1p-53;
    return -mean * std::log1p(-static_cast<double>(next() >> 11) * kUnit);
  }

 private:
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

/// Times of the stretch of training before a failure.
struct Stretch {
  double kept = 0, saving = 0, lost = 0;
};

Stretch stretch_until(double failure, const GoodputInputs& in, double interval) {
  const double previous = std::max(0.0, in.complete_s - in.wait_s - interval);
  const double wait = in.wait_s + previous, cycle = interval + wait;
  // The k-th save begins after k intervals and k − 1 waits.
  const double saves =
      std::max(0.0, std::floor((failure + wait - previous - in.complete_s) / cycle));
  const double cycles = std::floor(failure / cycle), rest = failure - cycles * cycle;
  const double waited = cycles * wait + std::max(0.0, rest - interval);
  return {saves * interval, waited, failure - waited - saves * interval};
}

/// The top of the parabola through the goodputs over the logarithm of the interval, by least
/// squares; where there is none, the best of the points.
double top_of(const std::vector<GoodputPoint>& points) {
  const auto best =
      std::ranges::max_element(points, {}, [](const GoodputPoint& p) { return p.goodput; });
  const double centre = std::log(best->interval_s);
  std::array<double, 5> x{};
  std::array<double, 3> y{};
  for (const GoodputPoint& point : points) {
    double power = 1;
    const double at = std::log(point.interval_s) - centre;
    for (std::size_t i = 0; i < x.size(); ++i, power *= at) {
      x[i] += power;
      if (i < y.size()) y[i] += power * (point.goodput - best->goodput);
    }
  }
  // Cramer's rule for the two coefficients that say where the top is.
  const double b = x[0] * (y[1] * x[4] - x[3] * y[2]) - y[0] * (x[1] * x[4] - x[3] * x[2]) +
                   x[2] * (x[1] * y[2] - y[1] * x[2]);
  const double a = x[0] * (x[2] * y[2] - y[1] * x[3]) - x[1] * (x[1] * y[2] - y[1] * x[2]) +
                   y[0] * (x[1] * x[3] - x[2] * x[2]);
  if (a * x[0] >= 0) return best->interval_s;
  const double top = std::exp(centre - b / (2 * a));
  return std::clamp(top, points.front().interval_s, points.back().interval_s);
}

/// `count` intervals from one to the other, each the same factor longer.
std::vector<GoodputPoint> play_between(const GoodputInputs& in, double from, double to, int count) {
  std::vector<GoodputPoint> points;
  for (int i = 0; i < count; ++i)
    points.push_back(play_failures(in, from * std::pow(to / from, i / (count - 1.0))));
  return points;
}

std::string percent(double share) { return significant(100 * share, 4) + " %"; }

}  // namespace

GoodputPoint play_failures(const GoodputInputs& in, double interval_s) {
  Random random(in.seed);
  double kept = 0, saving = 0, lost = 0, restarting = 0;
  for (std::int64_t failure = 0; failure < in.failures; ++failure) {
    const Stretch stretch = stretch_until(random.exponential(in.mtbf_s), in, interval_s);
    kept += stretch.kept;
    saving += stretch.saving;
    lost += stretch.lost;
    double until = random.exponential(in.mtbf_s);
    for (; until < in.restart_s; until = random.exponential(in.mtbf_s)) restarting += until;
    restarting += in.restart_s;
  }
  const double total = kept + saving + lost + restarting;
  return {interval_s, kept / total, saving / total, lost / total, restarting / total};
}

GoodputCurve goodput_curve(const GoodputInputs& in) {
  constexpr double kAround = 8;
  constexpr int kCoarse = 17, kFine = 25;
  GoodputCurve curve;
  curve.young_s = std::sqrt(2 * in.wait_s * in.mtbf_s);
  curve.daly_s = optimum_interval(in.wait_s, in.mtbf_s);
  const double least = std::max(in.step_s, std::min(curve.daly_s, in.mtbf_s) / kAround);
  const double most = std::max({least * 2, kAround * curve.daly_s, 4 * in.complete_s});
  curve.points = play_between(in, least, most, kCoarse);
  const auto best =
      std::ranges::max_element(curve.points, {}, [](const GoodputPoint& p) { return p.goodput; });
  const auto before = best == curve.points.begin() ? best : best - 1;
  const auto after = best + 1 == curve.points.end() ? best : best + 1;
  curve.best =
      play_failures(in, top_of(play_between(in, before->interval_s, after->interval_s, kFine)));
  return curve;
}

std::string compare_with_formulas(const GoodputInputs& in, const GoodputCurve& curve) {
  constexpr double kNear = 0.05, kSmall = 0.02;
  const double ratio = curve.best.interval_s / curve.daly_s;
  const std::string found = fmt::format("the best interval is {} of Daly's", percent(ratio));
  if (in.asynchronous() && std::abs(ratio - 1) <= kNear)
    return fmt::format(
        "{}: saves are asynchronous. The formulas take the {} that training waits for one; that it "
        "counts {} after its begin only loses as much more at each failure, whatever the interval",
        found, duration_text(in.wait_s), duration_text(in.complete_s));
  if (in.asynchronous())
    return fmt::format(
        "{}: saves are asynchronous. The formulas take the {} that training waits for one, but it "
        "counts {} after its begin only, and one that begins before the last is complete waits for "
        "it",
        found, duration_text(in.wait_s), duration_text(in.complete_s));
  if (std::abs(ratio - 1) <= kNear)
    return found + ": their assumptions hold (one cost for each save, exponential failures)";
  if (curve.best.interval_s < 2 * in.step_s) return found + ": an interval is at least one step";
  return fmt::format(
      "{}: a save takes {} of the {} between failures; the formulas are expansions for less than "
      "{}",
      found, percent(in.wait_s / in.mtbf_s), duration_text(in.mtbf_s), percent(kSmall));
}

std::string goodput_text(const GoodputInputs& in, const GoodputCurve& curve) {
  using Align = TextTable::Align;
  std::string text = fmt::format(
      "Goodput: a failure every {} (the whole job), a restart takes {}; a save stops training for "
      "{} and counts after {}; {} failures played, seed {}\n",
      duration_text(in.mtbf_s), duration_text(in.restart_s), duration_text(in.wait_s),
      duration_text(in.complete_s), in.failures, in.seed);
  TextTable table({{"interval", Align::kRight},
                   {"steps"},
                   {"goodput"},
                   {"saving"},
                   {"lost work"},
                   {"restarting"},
                   {"", Align::kLeft}});
  std::vector<std::pair<GoodputPoint, std::string>> rows;
  for (const GoodputPoint& point : curve.points) rows.emplace_back(point, "");
  rows.emplace_back(curve.best, "best");
  rows.emplace_back(play_failures(in, curve.young_s), "Young");
  rows.emplace_back(play_failures(in, curve.daly_s), "Daly");
  std::ranges::stable_sort(rows, {}, [](const auto& row) { return row.first.interval_s; });
  for (const auto& [point, name] : rows)
    table.add({duration_text(point.interval_s), significant(point.interval_s / in.step_s, 4),
               percent(point.goodput), percent(point.saving), percent(point.lost),
               percent(point.restarting), name});
  return text + table.text() + "Best: save every " +
         fmt::format("{:.0f} steps ({}); {}\n",
                     std::max(1.0, std::round(curve.best.interval_s / in.step_s)),
                     duration_text(curve.best.interval_s), compare_with_formulas(in, curve));
}

nlohmann::json goodput_json(const GoodputInputs& in, const GoodputCurve& curve) {
  const auto row = [](const GoodputPoint& p) {
    return nlohmann::json{{"interval_s", p.interval_s},
                          {"goodput", p.goodput},
                          {"saving", p.saving},
                          {"lost_work", p.lost},
                          {"restarting", p.restarting}};
  };
  nlohmann::json points = nlohmann::json::array();
  for (const GoodputPoint& point : curve.points) points.push_back(row(point));
  return {{"schema", "trellis.goodput/1"},
          {"step_s", in.step_s},
          {"mtbf_s", in.mtbf_s},
          {"restart_s", in.restart_s},
          {"wait_s", in.wait_s},
          {"complete_s", in.complete_s},
          {"failures", in.failures},
          {"seed", in.seed},
          {"best", row(curve.best)},
          {"young", row(play_failures(in, curve.young_s))},
          {"daly", row(play_failures(in, curve.daly_s))},
          {"comparison", compare_with_formulas(in, curve)},
          {"points", std::move(points)}};
}

}  // namespace trellis::analysis
