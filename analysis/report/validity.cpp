#include "analysis/report/validity.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/input_file.h"
#include "base/shared_files.h"
#include "base/yaml.h"
#include "analysis/report/run_report.h"

namespace trellis::analysis {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "trellis.validated/1";
constexpr std::int64_t kFewRows = 3;  ///< fewer have no 90th percentile to speak of

/// The properties that a group spans.
struct Property {
  const char* key;
  const char* text;
  Span ValidatedGroup::* span;
  std::int64_t StepPlace::* value;
};
constexpr Property kProperties[] = {
    {"parameters", "parameters", &ValidatedGroup::parameters, &StepPlace::parameters},
    {"sequence_length", "tokens per sequence", &ValidatedGroup::sequence_length,
     &StepPlace::sequence_length},
    {"nodes", "nodes", &ValidatedGroup::nodes, &StepPlace::nodes},
    {"tp", "tensor-parallel ranks", &ValidatedGroup::tp, &StepPlace::tp},
    {"pp", "pipeline stages", &ValidatedGroup::pp, &StepPlace::pp},
    {"experts", "experts", &ValidatedGroup::experts, &StepPlace::experts},
    {"lora", "LoRA", &ValidatedGroup::lora, &StepPlace::lora}};

struct Number {
  const char* key;
  double ValidatedGroup::* value;
  double least;
};
constexpr Number kNumbers[] = {{"median_error", &ValidatedGroup::median_error, 0},
                               {"p90_error", &ValidatedGroup::p90_error, 0},
                               {"p90_factor", &ValidatedGroup::p90_factor, 1},
                               {"worst_factor", &ValidatedGroup::worst_factor, 1}};

Span read_span(const YamlMap& row, const char* key) {
  const auto ends = row.required<std::vector<double>>(key);
  const bool good = ends.size() == 2 && ends[0] >= 0 && ends[0] <= ends[1];
  if (!good && row.has(key)) row.problem(key, "expected [least, most], neither below 0");
  return good ? Span{std::llround(ends[0]), std::llround(ends[1])} : Span{};
}

ValidatedGroup read_group(const YamlMap& row) {
  ValidatedGroup group;
  group.instance = row.required<std::string>("instance");
  group.size = row.required<std::string>("size");
  group.rows = row.required<std::int64_t>("rows");
  if (group.rows < 1 && row.has("rows")) row.problem("rows", "must be at least 1");
  for (const Property& property : kProperties) group.*property.span = read_span(row, property.key);
  for (const Number& number : kNumbers) {
    group.*number.value = row.required<double>(number.key);
    if (group.*number.value < number.least && row.has(number.key))
      row.problem(number.key, fmt::format("must be at least {}", number.least));
  }
  row.reject_unknown();
  return group;
}

std::string line_of(const ValidatedGroup& group) {
  std::string text =
      fmt::format("{{instance: {}, size: \"{}\", rows: {}", group.instance, group.size, group.rows);
  for (const Property& property : kProperties)
    text += fmt::format(", {}: [{}, {}]", property.key, (group.*property.span).least,
                        (group.*property.span).most);
  text += ",\n    ";
  for (const Number& number : kNumbers)
    text += fmt::format(" {}: {:.4g}{}", number.key, group.*number.value,
                        &number == std::end(kNumbers) - 1 ? "}" : ",");
  return text;
}

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
  for (const Property& property : kProperties) {
    const Span& span = group.*property.span;
    const std::int64_t value = place.*property.value;
    if (span.has(value)) continue;
    to.reasons.push_back(
        fmt::format("{} {} (measured: {})", property.text, number_text(value), span_text(span)));
    to.doublings += span.doublings_to(value);
  }
  return to;
}

std::string rows_text(const ValidatedGroup& group) {
  return fmt::format(
      "{} measured {}{}", group.rows, group.rows == 1 ? "step" : "steps",
      group.instance == "any" ? "" : fmt::format(" of {}, {}", group.instance, group.size));
}

Validity inside(const ValidatedRecord& record, const ValidatedGroup& group) {
  Validity validity;
  const bool few = group.rows < kFewRows && record.all.p90_factor > group.p90_factor;
  const ValidatedGroup& judge = few ? record.all : group;
  validity.factor = validity.measured_factor = judge.p90_factor;
  validity.basis = fmt::format(
      "nine of ten of {} are within a factor {:.2f} of their predictions (median error {:.1f} %)",
      rows_text(judge), judge.p90_factor, 100 * judge.median_error);
  if (few)
    validity.basis += fmt::format("; {} alone  too few to judge", rows_text(group),
                                  group.rows == 1 ? "is" : "are");
  return validity;
}

/// Linear between ranks, as in `trellis accuracy`.
double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

ValidatedGroup group_of(const std::string& instance, const std::string& size,
                        const std::vector<const ComparedStep*>& steps) {
  ValidatedGroup group;
  group.instance = instance;
  group.size = size;
  group.rows = static_cast<std::int64_t>(steps.size());
  std::vector<double> errors, factors;
  for (const ComparedStep* step : steps) {
    const double ratio = step->predicted_s / step->published_s;
    errors.push_back(std::abs(ratio - 1));
    factors.push_back(std::max(ratio, 1 / ratio));
    for (const Property& property : kProperties) {
      Span& span = group.*property.span;
      const std::int64_t value = step->place.*property.value;
      span = step == steps.front() ? Span{value, value}
                                   : Span{std::min(span.least, value), std::max(span.most, value)};
    }
  }
  group.median_error = percentile(errors, 0.5);
  group.p90_error = percentile(errors, 0.9);
  group.p90_factor = percentile(factors, 0.9);
  group.worst_factor = percentile(factors, 1);
  return group;
}

}  // namespace

double Span::doublings_to(std::int64_t value) const {
  if (has(value)) return 0;
  const std::int64_t border = value < least ? least : most;
  const auto size = [](std::int64_t n) { return n == 0 ? -1 : std::log2(static_cast<double>(n)); };
  return std::abs(size(value) - size(border));
}

fs::path published_directory() {
  if (const char* chosen = std::getenv("TRELLIS_PUBLISHED_DIR");
      chosen != nullptr && *chosen != '\0')
    return chosen;
  return shared_directory("published", TRELLIS_SOURCE_PUBLISHED_DIR);
}

ValidatedRecord read_groups(const YamlMap& root) {
  ValidatedRecord record;
  for (const YamlMap& row : root.list_of_maps("groups")) record.groups.push_back(read_group(row));
  if (record.groups.empty()) root.problem("groups", "is missing or empty");
  record.all = read_group(root.map("all"));
  return record;
}

ValidatedRecord parse_validated_record(const std::string& text, const std::string& name) {
  const YamlDocument document = YamlDocument::parse(text, name);
  const YamlMap root = document.root();
  if (const auto schema = root.required<std::string>("schema");
      schema != kSchema && root.has("schema")) {
    root.problem(
        "schema",
        fmt::format(
            "expected {}, got {}; `trellis accuracy training --write-validated {}` writes it again",
            kSchema, schema, name));
  }
  ValidatedRecord record = read_groups(root);
  root.reject_unknown();
  document.problems().throw_if_any();
  return record;
}

std::optional<ValidatedRecord> read_validated_record() {
  const fs::path file = published_directory() / "validated.yaml";
  if (!why_no_input_file(file).empty()) return std::nullopt;
  return parse_validated_record(read_input_file(file), file.string());
}

ValidatedRecord make_validated_record(const std::vector<ComparedStep>& steps) {
  std::vector<std::pair<std::pair<std::string, std::string>, std::vector<const ComparedStep*>>>
      groups;
  std::vector<const ComparedStep*> all;
  for (const ComparedStep& step : steps) {
    const std::pair key(step.place.instance, step.size);
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& group) { return group.first == key; });
    if (found == groups.end()) found = groups.insert(groups.end(), {key, {}});
    found->second.push_back(&step);
    all.push_back(&step);
  }
  ValidatedRecord record;
  for (const auto& [key, members] : groups)
    record.groups.push_back(group_of(key.first, key.second, members));
  record.all = group_of("any", "any", all);
  return record;
}

std::string groups_yaml(const ValidatedRecord& record) {
  std::string text = "groups:\n";
  for (const ValidatedGroup& group : record.groups) text += "  - " + line_of(group) + "\n";
  return text + "all:\n  " + line_of(record.all) + "\n";
}

std::string to_yaml(const ValidatedRecord& record) {
  return fmt::format(
             "# Where predicted training steps are compared with published ones, and how far off "
             "they "
             "are. Written by `trellis accuracy training --write-validated`;\n"
             "# read by every verb that prints a step time. Errors: |model / published - 1|; "
             "factors: max(model / published, published / model).\n"
             "schema: {}\n",
             kSchema) +
         groups_yaml(record);
}

Validity judge_validity(const std::optional<ValidatedRecord>& record, const StepPlace& place) {
  if (!record)
    return {
        {"no record of measured steps is there (validated.yaml)"}, 0, "nothing to compare with"};
  std::optional<Distance> nearest;
  for (const ValidatedGroup& group : record->groups) {
    if (group.instance != place.instance) continue;
    Distance to = distance(group, place);
    if (to.reasons.empty() && place.unlike.empty()) return inside(*record, group);
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
  validity.measured_factor = record->all.worst_factor;
  validity.steps_beyond = nearest->doublings + static_cast<double>(unlike);
  validity.factor = validity.measured_factor * std::pow(kWiderPerStep, validity.steps_beyond);
  validity.basis = fmt::format(
      "within a factor {:.2f}: the worst of {} is off by {:.2f}, taken 10 % wider for each "
      "doubling and each property beyond them",
      validity.factor, rows_text(record->all), record->all.worst_factor);
  return validity;
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
