#include "sim/config/parameter_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/nearest.h"

namespace trellis::sim {
namespace {

const std::array<std::string, 4> kEvidenceWords = {"spec", "measured", "calibrated", "estimated"};

std::optional<Evidence> parse_evidence(const std::string& word) {
  for (std::size_t i = 0; i < kEvidenceWords.size(); ++i) {
    if (kEvidenceWords[i] == word) return static_cast<Evidence>(i);
  }
  return std::nullopt;
}

Evidence read_evidence(const YamlMap& entry) {
  const auto word = entry.required<std::string>("evidence");
  if (const auto evidence = parse_evidence(word)) return *evidence;
  if (entry.has("evidence")) {
    const std::string near = nearest_name(word, kEvidenceWords);
    entry.problem("evidence", "expected spec, measured, calibrated or estimated, got \"" + word +
                                  "\"" + (near.empty() ? "" : "; did you mean " + near + "?"));
  }
  return Evidence::kEstimated;
}

}  // namespace

std::string_view name(Evidence evidence) {
  return kEvidenceWords.at(static_cast<std::size_t>(evidence));
}

void ParameterReader::check_positive(const YamlMap& entry, double value) {
  if (value < 0) entry.problem("value", "must not be negative");
}

void ParameterReader::check_replacement(const YamlMap& entry, const Written& written, double value,
                                        bool is_time) {
  constexpr double kFactor = 1000;
  const auto expect = [&](bool holds, const std::string& expected) {
    if (!holds)
      entry.problem("value", fmt::format("expected {}, got '{}'", expected, entry.raw("value")));
  };
  if (is_time) {
    // Longer ones are what a restart waits for.
    const double most = std::max(10 * kPicosecondsPerSecond, 10 * written.value);
    expect(value >= 0 && value <= most,
           fmt::format("a time from 0 to {} s", most / kPicosecondsPerSecond));
  } else if (written.value > 0) {
    expect(value >= written.value / kFactor && value <= written.value * kFactor,
           fmt::format("at most {} times more or less than the hardware file's {}", kFactor,
                       written.text));
  } else {
    expect(value >= 0 && value <= kFactor, fmt::format("0 to {}", kFactor));
  }
}

Parameter ParameterReader::describe(const std::string& key, const YamlMap& entry) const {
  Parameter parameter;
  parameter.key = prefix_ + key;
  parameter.value = entry.raw("value");
  parameter.source = entry.required<std::string>("source");
  parameter.evidence = read_evidence(entry);
  parameter.from_traces = parameter.source.starts_with("instruction traces:");
  parameter.range = entry.get<std::string>("range", "");
  const bool uncertain =
      parameter.evidence == Evidence::kEstimated || parameter.evidence == Evidence::kCalibrated;
  if (uncertain && parameter.range.empty())
    entry.problem("range", "is missing: an " + std::string(name(parameter.evidence)) +
                               " number states its plausible range");
  if (parameter.evidence == Evidence::kCalibrated)
    entry.problem("evidence",
                  "fitted numbers are in the calibration folder; here: the published value, or "
                  "an estimate");
  if (parameter.source.empty() && entry.has("source"))
    entry.problem("source", "is empty: say where the number is from");
  entry.reject_unknown();
  return parameter;
}

Parameter ParameterReader::merge(Parameter written, Parameter replacement) {
  replacement.source += "; instead of " + written.value + " (" + written.source + ")";
  return replacement;
}

void ParameterReader::remember(Parameter parameter) {
  if (out_ != nullptr) out_->push_back(std::move(parameter));
}

}  // namespace trellis::sim
