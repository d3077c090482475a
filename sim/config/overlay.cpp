#include "sim/config/overlay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/nearest.h"
#include "sim/config/software_config.h"

namespace trellis::sim {
namespace {

namespace fs = std::filesystem;

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// A fitted parameter says what it means, how it was found and on which rows.
Parameter describe_fitted(const std::string& key, const YamlMap& entry) {
  Parameter p;
  p.key = key;
  p.value = entry.raw("value");
  if (p.value.empty()) entry.problem("value", "is missing: expected a number with its unit");
  p.evidence = Evidence::kCalibrated;
  p.range = entry.required<std::string>("range");
  const auto rows = entry.required<std::vector<std::string>>("fitted_on");
  p.source = entry.required<std::string>("meaning") + "; " + entry.required<std::string>("origin") +
             "; fitted on " + join(rows);
  entry.allow_any("value");
  (void)entry.required<std::string>("subject");  // which rows: scripts/calibrate fits by it
  entry.reject_unknown();
  return p;
}

}  // namespace

Overlay::Overlay(const std::string& generation, const LoadOptions& options) {
  if (options.calibrated) {
    std::error_code ignored;
    const fs::path folder = calibration_directory();
    const std::array<std::pair<std::string, std::string>, 2> fitted = {
        {{"generation", generation}, {"stack", stack_name(options.software)}}};
    for (const auto& [kind, name] : fitted) {
      const fs::path file = folder / (name + ".yaml");
      if (!folder.empty() && fs::exists(file, ignored)) read_fitted(file, kind);
    }
  }
  for (const auto& each : options.overrides) read_override(each);
}

void Overlay::read_fitted(const fs::path& file, const std::string& kind) {
  documents_.push_back(YamlDocument::load(file));
  const YamlMap root = documents_.back().root();
  const auto name = root.required<std::string>(kind);
  if (name != file.stem())
    root.problem(kind, "is " + name + ", the file is named " + file.filename().string());
  const YamlMap parameters = root.map("parameters");
  root.reject_unknown();
  const auto keys = parameters.keys();
  if (keys.size() > kMaxFitted)
    root.problem("parameters", fmt::format("has {} fitted parameters, at most {} are allowed",
                                           keys.size(), kMaxFitted));
  for (const auto& key : keys) {
    const YamlMap entry = parameters.map(key);
    replacements_.insert_or_assign(key, Replacement{entry, describe_fitted(key, entry)});
  }
}

void Overlay::read_traces(const YamlMap& section, bool replace) {
  for (const auto& key : section.keys()) {
    const YamlMap entry = section.map(key);
    Parameter described{key,
                        entry.raw("value"),
                        entry.required<std::string>("source"),
                        Evidence::kMeasured,
                        entry.get<std::string>("range", ""),
                        true};
    if (entry.required<std::string>("evidence") != name(Evidence::kMeasured))
      entry.problem("evidence", "expected measured: these numbers are read off traces");
    entry.allow_any("value");
    entry.reject_unknown();
    if (replace) replacements_.try_emplace(key, Replacement{entry, std::move(described)});
  }
}

void Overlay::read_override(const std::string& text) {
  const auto equals = text.find('=');
  const auto check = [&](bool holds) {
    if (!holds)
      throw ConfigError("--set \"" + text +
                        "\": expected key=value, e.g. --set \"core.dma.engine_rate=20 GB/s\"");
  };
  check(equals != std::string::npos && equals != 0);
  const std::string key = text.substr(0, equals);
  documents_.push_back(YamlDocument::parse("value: " + text.substr(equals + 1), "--set " + key));
  const YamlMap entry = documents_.back().root();
  check(!entry.raw("value").empty());
  replacements_.insert_or_assign(key, Replacement{entry,
                                                  {key, entry.raw("value"), "set by the user",
                                                   Evidence::kEstimated, "as given"}});
}

const Overlay::Replacement* Overlay::find(const std::string& key) {
  asked_[key] = true;
  const auto found = replacements_.find(key);
  return found == replacements_.end() ? nullptr : &found->second;
}

void Overlay::throw_if_any() const {
  std::vector<std::string> problems;
  for (const auto& document : documents_) {
    for (const auto& line : document.problems().lines()) problems.push_back(line);
  }
  std::vector<std::string> known;
  for (const auto& [key, unused] : asked_) known.push_back(key);
  const bool reads_software = std::ranges::any_of(
      known, [](const std::string& key) { return key.starts_with(kSoftwarePrefix); });
  for (const auto& [key, replacement] : replacements_) {
    if (asked_.contains(key)) continue;
    if (key.starts_with(kSoftwarePrefix) && !reads_software) {
      problems.push_back(key +
                         ": is a number of a training software: expected `software: STACK` in "
                         "the configuration, got none (`trellis describe software` lists them)");
      continue;
    }
    const std::string near = nearest_name(key, known);
    problems.push_back(key + ": is no hardware parameter" +
                       (near.empty() ? "" : "; did you mean " + near + "?") +
                       "; `trellis describe INSTANCE` lists them");
  }
  if (!problems.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace trellis::sim
