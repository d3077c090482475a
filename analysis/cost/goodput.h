#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

/// The share of a run's time that is work that stays, when nodes fail: played failure by failure.
/// Seconds throughout.
namespace trellis::analysis {

struct GoodputInputs {
  double step_s = 0;
  double mtbf_s = 0;      ///< of the whole job; failures are exponentially distributed
  double wait_s = 0;      ///< training waits for a save that waits for no other
  double complete_s = 0;  ///< from the begin of a save until it counts; at least wait_s
  double restart_s = 0;   ///< from a failure to the first step again; it may fail too
  std::int64_t failures = 200'000;
  std::uint64_t seed = 1;
  [[nodiscard]] bool asynchronous() const { return complete_s > wait_s; }
};

/// Shares of the time; they add up to 1.
struct GoodputPoint {
  double interval_s = 0;  ///< of work between the begins of two saves
  double goodput = 0;     ///< work that no failure took back
  double saving = 0;      ///< standing still for saves
  double lost = 0;        ///< work that was done and had to be done again
  double restarting = 0;
};

/// Plays `failures` failures. The same seed gives the same failures for every interval. A save
/// that begins while the one before is under way waits for it (sim::exposed_time). A save under
/// way at a failure is none.
[[nodiscard]] GoodputPoint play_failures(const GoodputInputs& inputs, double interval_s);

struct GoodputCurve {
  std::vector<GoodputPoint> points;  ///< of intervals around the best one, ascending
  GoodputPoint best;                 ///< of the best interval
  double young_s = 0;                ///< √(2·C·M), of what training waits for
  double daly_s = 0;                 ///< optimum_interval()
};
/// REQUIRES: wait_s > 0, mtbf_s > 0. The best interval is the top of a parabola through the
/// intervals around the best of a grid: failures leave noise in each of them.
[[nodiscard]] GoodputCurve goodput_curve(const GoodputInputs& inputs);

/// Why the best interval is, or is not, the formulas'.
[[nodiscard]] std::string compare_with_formulas(const GoodputInputs& inputs,
                                                const GoodputCurve& curve);

/// A table for people; schema trellis.goodput/1.
[[nodiscard]] std::string goodput_text(const GoodputInputs& inputs, const GoodputCurve& curve);
[[nodiscard]] nlohmann::json goodput_json(const GoodputInputs& inputs, const GoodputCurve& curve);

}  // namespace trellis::analysis
