#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "traces/report/validated_record.h"

/// How far a predicted step time is to be believed: what measured steps say about a run.
namespace trellis::analysis {

/// The worst of n errors bounds the next one with a probability of n / (n + 1), whatever their
/// distribution (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2.2): of nine,
/// nine times in ten.
inline constexpr std::size_t kNearestSteps = 9;

/// How much wider a range is for each doubling, or property, outside of the measured ones: an
/// assumption, stated with every range that uses it.
inline constexpr double kWiderPerStep = 1.1;

/// The range of a step time is [time / factor, time · factor].
struct Validity {
  std::vector<std::string> reasons;  ///< why it is exploratory; empty: validated
  double factor = 0;                 ///< 0: nothing is known, there is no record
  std::string basis;                 ///< what the range comes from, one sentence
  double measured_factor = 0;        ///< of the steps that `factor` begins with
  double steps_beyond = 0;           ///< doublings and properties beyond those steps: `factor` is
                                     ///< kWiderPerStep times wider for each
  [[nodiscard]] bool exploratory() const { return !reasons.empty(); }
};

/// The kNearestSteps steps that are nearest: those of the run's instance first, then by
/// distance_between. Fewer where there are fewer.
[[nodiscard]] std::vector<const ComparedStep*> nearest_steps(const ValidatedRecord& record,
                                                             const StepPlace& place);

/// Inside the spans of a group of the run's instance: the worst of the nearest steps. Outside: the
/// worst of all steps, 10 % wider for each doubling beyond the nearest group, and for each other
/// thing that is unlike it.
[[nodiscard]] Validity judge_validity(const std::optional<ValidatedRecord>& record,
                                      const StepPlace& place);

/// Tests whether ranges hold for steps that the record does not know: each step is judged by a
/// record without the steps of its model family.
struct CrossValidation {
  std::size_t steps = 0, within = 0;                ///< within their ranges
  std::size_t validated = 0, validated_within = 0;  ///< of those that are called validated
  double median_factor = 1;                         ///< of these
};
[[nodiscard]] CrossValidation cross_validate(const ValidatedRecord& record);

/// As reports give the time of a step: one conversion for all, so that ranges are equal bit by bit.
[[nodiscard]] constexpr double step_milliseconds(std::int64_t step_ps) {
  return static_cast<double>(step_ps) * 1e-12 * 1e3;
}

/// Key "validity" of a run report: {status, reasons, basis, factor, step_time_range_ms}; the last
/// two only when something is known.
[[nodiscard]] nlohmann::json to_json(const Validity& validity, double step_time_ms);
/// Two lines at most: range and its basis; what is exploratory. For a report without the key (of an
/// older version) a line that says so.
[[nodiscard]] std::string validity_text(const nlohmann::json& report);
/// One line on a report's key "validity": "exploratory: reason; reason" or "validated: basis"; ""
/// when it is null.
[[nodiscard]] std::string validity_line(const nlohmann::json& validity);
/// Least and most of a `value` that is scaled as the step time is; none when nothing is known.
[[nodiscard]] std::optional<std::pair<double, double>> range_of(const nlohmann::json& report,
                                                                double value);
/// Four digits, or all before the point.
[[nodiscard]] std::string short_number(double value);
/// "4178 to 6220 ms", with ", exploratory" where it is that; "unknown".
[[nodiscard]] std::string range_text(const nlohmann::json& report);

}  // namespace trellis::analysis
