#include "traces/report/validity.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/number_text.h"

namespace trellis::analysis {

namespace {

std::string number_text(std::int64_t value) {
  return value >= 1'000'000'000 ? fmt::format("{:.3g} B", static_cast<double>(value) * 1e-9)
         : value >= 1'000'000   ? fmt::format("{:.3g} M", static_cast<double>(value) * 1e-6)
                                : thousands(value);
}

std::string span_text(const Span& span) {
  return span.least == span.most ? number_text(span.least)
                                 : number_text(span.least) + " to " + number_text(span.most);
}

/// How a place lies to a group.
struct Distance {
  std::vector<std::string> reasons;
  double doublings = 0;
  auto operator<=>(const Distance& other) const {
    return std::pair(reasons.size(), doublings) <=>
           std::pair(other.reasons.size(), other.doublings);
  }
};

Distance distance(const ValidatedGroup& group, const StepPlace& place) {
  Distance to;
  for (const StepProperty& property : kStepProperties) {
    const Span& span = group.*property.span;
    const std::int64_t value = place.*property.value;
    if (span.has(value)) continue;
    to.reasons.push_back(
        fmt::format("{} {} (measured: {})", property.text, number_text(value), span_text(span)));
    to.doublings += span.doublings_to(value);
  }
  return to;
}

Validity inside(const ValidatedRecord& record, const StepPlace& place) {
  const std::vector<const ComparedStep*> nearest = nearest_steps(record, place);
  const ComparedStep& worst = **std::ranges::max_element(
      nearest, {}, [](const ComparedStep* step) { return step->factor(); });
  Validity validity;
  validity.factor = validity.measured_factor = worst.factor();
  validity.basis =
      nearest.size() == kNearestSteps
          ? fmt::format(
                "nine of ten runs are expected within a factor {:.2f}, the worst of the "
                "nine nearest measured steps ({})",
                validity.factor, worst.id)
          : fmt::format(
                "within a factor {:.2f}, the worst of {} measured {} ({}); with nine, nine "
                "of ten runs would be expected within it",
                validity.factor, nearest.size(), nearest.size() == 1 ? "step" : "steps", worst.id);
  return validity;
}

}  // namespace

std::vector<const ComparedStep*> nearest_steps(const ValidatedRecord& record,
                                               const StepPlace& place) {
  std::vector<std::pair<std::pair<bool, double>, const ComparedStep*>> order;
  for (const ComparedStep& step : record.steps) {
    order.push_back(
        {{step.place.instance != place.instance, distance_between(step.place, place).total},
         &step});
  }
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
  std::vector<const ComparedStep*> nearest;
  for (const auto& [distance, step] : order) {
    if (nearest.size() < kNearestSteps) nearest.push_back(step);
  }
  return nearest;
}

Validity judge_validity(const std::optional<ValidatedRecord>& record, const StepPlace& place) {
  if (!record)
    return {
        {"no record of measured steps is there (validated.yaml)"}, 0, "nothing to compare with"};
  std::optional<Distance> nearest;
  for (const ValidatedGroup& group : record->groups) {
    if (group.instance != place.instance) continue;
    Distance to = distance(group, place);
    if (to.reasons.empty() && place.unlike.empty()) return inside(*record, place);
    if (!nearest || to < *nearest) nearest = std::move(to);
  }
  std::size_t unlike = place.unlike.size();
  if (!nearest) {
    nearest = distance(record->all, place);
    nearest->reasons.insert(nearest->reasons.begin(),
                            fmt::format("no measured step of {}", place.instance));
    ++unlike;
  }
  Validity validity;
  validity.reasons = std::move(nearest->reasons);
  validity.reasons.insert(validity.reasons.end(), place.unlike.begin(), place.unlike.end());
  validity.measured_factor = record->worst_factor();
  validity.steps_beyond = nearest->doublings + static_cast<double>(unlike);
  validity.factor = validity.measured_factor * std::pow(kWiderPerStep, validity.steps_beyond);
  validity.basis = fmt::format(
      "within a factor {:.2f}: the worst of {} measured steps is off by {:.2f}, taken 10 % wider "
      "for each doubling and each property beyond them",
      validity.factor, record->steps.size(), validity.measured_factor);
  return validity;
}

CrossValidation cross_validate(const ValidatedRecord& record) {
  CrossValidation result;
  std::vector<double> factors;
  for (const ComparedStep& step : record.steps) {
    std::vector<ComparedStep> others;
    std::ranges::copy_if(record.steps, std::back_inserter(others),
                         [&](const ComparedStep& other) { return other.family != step.family; });
    if (others.empty()) continue;
    const Validity validity = judge_validity(make_validated_record(std::move(others)), step.place);
    const bool within = step.factor() <= validity.factor;
    result.steps += 1;
    result.within += within ? 1 : 0;
    if (validity.exploratory()) continue;
    result.validated += 1;
    result.validated_within += within ? 1 : 0;
    factors.push_back(validity.factor);
  }
  std::ranges::sort(factors);
  if (!factors.empty())
    result.median_factor = (factors[(factors.size() - 1) / 2] + factors[factors.size() / 2]) / 2;
  return result;
}

nlohmann::json to_json(const Validity& validity, double step_time_ms) {
  nlohmann::json out = {{"status", validity.exploratory() ? "exploratory" : "validated"},
                        {"reasons", validity.reasons},
                        {"basis", validity.basis}};
  if (validity.factor <= 0) return out;
  out["factor"] = validity.factor;
  out["step_time_range_ms"] = {step_time_ms / validity.factor, step_time_ms * validity.factor};
  return out;
}

std::optional<std::pair<double, double>> range_of(const nlohmann::json& report, double value) {
  const auto found = report.find("validity");
  if (found == report.end() || !found->contains("factor")) return std::nullopt;
  const double factor = found->at("factor").get<double>();
  return std::pair(value / factor, value * factor);
}

std::string validity_line(const nlohmann::json& validity) {
  if (validity.is_null()) return "";
  const auto reasons = validity.at("reasons").get<std::vector<std::string>>();
  return fmt::format("{}: {}\n", validity.at("status").get<std::string>(),
                     reasons.empty() ? validity.at("basis").get<std::string>()
                                     : fmt::format("{}", fmt::join(reasons, "; ")));
}

std::string short_number(double value) {
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string range_text(const nlohmann::json& report) {
  const auto range = range_of(report, report.at("step_time_ms").get<double>());
  const std::string text =
      range ? short_number(range->first) + " to " + short_number(range->second) + " ms" : "unknown";
  return report.contains("validity") && report.at("validity").at("status") == "exploratory"
             ? text + ", exploratory"
             : text;
}

std::string validity_text(const nlohmann::json& report) {
  const auto found = report.find("validity");
  if (found == report.end()) return "Range: unknown, the report is of a version that kept none\n";
  const std::string basis = found->at("basis").get<std::string>();
  const auto range = range_of(report, report.at("step_time_ms").get<double>());
  std::string text =
      range ? fmt::format("Range {} to {} ms, evidence: {}; {}\n", short_number(range->first),
                          short_number(range->second),
                          report.at("simulated").at("evidence").get<std::string>(), basis)
            : fmt::format("Range unknown: {}\n", basis);
  return found->at("reasons").empty() ? text : text + validity_line(*found);
}

}  // namespace trellis::analysis
