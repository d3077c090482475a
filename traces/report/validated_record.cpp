#include "traces/report/validated_record.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files/input_file.h"
#include "base/files/shared_files.h"

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "trellis.validated/2";

ValidatedGroup group_of(const std::string& instance, const std::string& size,
                        const std::vector<const ComparedStep*>& steps) {
  ValidatedGroup group;
  group.instance = instance;
  group.size = size;
  for (const ComparedStep* step : steps) {
    for (const StepProperty& property : kStepProperties) {
      Span& span = group.*property.span;
      const std::int64_t value = step->place.*property.value;
      span = step == steps.front() ? Span{value, value}
                                   : Span{std::min(span.least, value), std::max(span.most, value)};
    }
  }
  return group;
}

double read_seconds(const YamlMap& row, const char* key) {
  const auto seconds = row.required<double>(key);
  if (seconds > 0) return seconds;
  if (row.has(key)) row.problem(key, fmt::format("must be greater than 0, got {}", seconds));
  return 1;
}

ComparedStep read_step(const YamlMap& row) {
  ComparedStep step;
  step.id = row.required<std::string>("id");
  step.family = row.required<std::string>("family");
  step.size = row.required<std::string>("size");
  step.place.instance = row.required<std::string>("instance");
  step.place.software = row.required<std::string>("software");
  const auto count = [&](const char* key, std::int64_t least) {
    const auto value = row.required<std::int64_t>(key);
    if (value < least && row.has(key))
      row.problem(key, fmt::format("must be at least {}, got {}", least, value));
    return std::max(least, value);
  };
  for (const StepProperty& property : kStepProperties) {
    const bool may_be_none =
        property.value == &StepPlace::experts || property.value == &StepPlace::lora;
    step.place.*property.value = count(property.key, may_be_none ? 0 : 1);
  }
  step.place.dp = count("dp", 1);
  step.published_s = read_seconds(row, "published_s");
  step.predicted_s = read_seconds(row, "predicted_s");
  row.reject_unknown();
  return step;
}

/// JSON's texts are YAML's too.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string line_of(const ComparedStep& step) {
  std::string text = fmt::format("{{id: {}, family: {}, instance: {}, size: {}, software: {}",
                                 quoted(step.id), quoted(step.family), quoted(step.place.instance),
                                 quoted(step.size), quoted(step.place.software));
  for (const StepProperty& property : kStepProperties)
    text += fmt::format(", {}: {}", property.key, step.place.*property.value);
  return text + fmt::format(",\n     dp: {}, published_s: {:.6g}, predicted_s: {:.6g}}}",
                            step.place.dp, step.published_s, step.predicted_s);
}

}  // namespace

double Span::doublings_to(std::int64_t value) const {
  if (has(value)) return 0;
  const std::int64_t border = value < least ? least : most;
  const auto size = [](std::int64_t n) { return n == 0 ? -1 : std::log2(static_cast<double>(n)); };
  return std::abs(size(value) - size(border));
}

std::string generation_of(const std::string& instance) {
  return instance.substr(0, instance.find('.')).substr(0, 4);
}

StepDistance distance_between(const StepPlace& a, const StepPlace& b) {
  StepDistance distance;
  const auto add = [&](const std::string& what, double much) {
    if (much > 0) distance.parts.emplace_back(what, much);
    distance.total += much;
  };
  const auto doublings = [](std::int64_t x, std::int64_t y) {
    return std::abs(std::log2(static_cast<double>(std::max<std::int64_t>(1, x))) -
                    std::log2(static_cast<double>(std::max<std::int64_t>(1, y))));
  };
  const bool one_generation = generation_of(a.instance) == generation_of(b.instance);
  add("parameters", doublings(a.parameters, b.parameters));
  add("sequence length", doublings(a.sequence_length, b.sequence_length));
  add("nodes", doublings(a.nodes, b.nodes));
  add("TP", doublings(a.tp, b.tp));
  add("PP", doublings(a.pp, b.pp));
  add("CP", doublings(a.cp, b.cp));
  add("DP", doublings(a.dp, b.dp));
  add("software", a.software == b.software ? 0 : 1);
  add("generation", one_generation ? 0 : 1);
  add("instance", one_generation && a.instance != b.instance ? 1 : 0);
  add("experts", (a.experts > 0) == (b.experts > 0) ? 0 : 1);
  add("LoRA", a.lora == b.lora ? 0 : 1);
  std::stable_sort(distance.parts.begin(), distance.parts.end(),
                   [](const auto& x, const auto& y) { return x.second > y.second; });
  return distance;
}

double ComparedStep::factor() const {
  const double ratio = predicted_s / published_s;
  return std::max(ratio, 1 / ratio);
}

double ValidatedRecord::worst_factor() const {
  double worst = 1;
  for (const ComparedStep& step : steps) worst = std::max(worst, step.factor());
  return worst;
}

ValidatedRecord make_validated_record(std::vector<ComparedStep> steps) {
  ValidatedRecord record;
  record.steps = std::move(steps);
  std::vector<std::pair<std::pair<std::string, std::string>, std::vector<const ComparedStep*>>>
      groups;
  std::vector<const ComparedStep*> all;
  for (const ComparedStep& step : record.steps) {
    const std::pair key(step.place.instance, step.size);
    auto found = std::ranges::find(groups, key, [](const auto& group) { return group.first; });
    if (found == groups.end()) found = groups.insert(groups.end(), {key, {}});
    found->second.push_back(&step);
    all.push_back(&step);
  }
  for (const auto& [key, members] : groups)
    record.groups.push_back(group_of(key.first, key.second, members));
  record.all = group_of("any", "any", all);
  return record;
}

fs::path published_directory() {
  if (const char* chosen = std::getenv("TRELLIS_PUBLISHED_DIR");
      chosen != nullptr && *chosen != '\0')
    return chosen;
  return shared_directory("published", TRELLIS_SOURCE_PUBLISHED_DIR);
}

ValidatedRecord read_steps(const YamlMap& root) {
  std::vector<ComparedStep> steps;
  for (const YamlMap& row : root.list_of_maps("steps")) steps.push_back(read_step(row));
  if (steps.empty()) root.problem("steps", "is missing or empty");
  return make_validated_record(std::move(steps));
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
  ValidatedRecord record = read_steps(root);
  root.reject_unknown();
  document.problems().throw_if_any();
  return record;
}

std::optional<ValidatedRecord> read_validated_record() {
  const fs::path file = published_directory() / "validated.yaml";
  if (!why_no_input_file(file).empty()) return std::nullopt;
  return parse_validated_record(read_input_file(file), file.string());
}

std::string steps_yaml(const ValidatedRecord& record) {
  std::string text = "steps:\n";
  for (const ComparedStep& step : record.steps) text += "  - " + line_of(step) + "\n";
  return text;
}

std::string to_yaml(const ValidatedRecord& record) {
  return fmt::format(
             "# Published training steps and their predictions, each with the numbers that are "
             "fitted to steps found without the step's model family.\n"
             "# Written by `trellis accuracy training --write-validated`; read by every verb that "
             "prints a step time.\n"
             "schema: {}\n",
             kSchema) +
         steps_yaml(record);
}

}  // namespace trellis::analysis
