#include "trainer/config/reader/section_reader.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/escape.h"
#include "base/nearest.h"
#include "base/problem.h"
#include "trainer/config/names.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::trainer {
namespace {

std::string preferred(std::string_view neutral) {
  return std::string(neutral.substr(0, neutral.find('|')));
}

const char* type_text(bool) { return "boolean"; }
const char* type_text(int) { return "integer"; }
const char* type_text(std::int64_t) { return "integer"; }
const char* type_text(double) { return "number"; }
const char* type_text(const std::string&) { return "text"; }
const char* type_text(const std::vector<double>&) { return "list of numbers"; }
const char* type_text(const std::vector<std::string>&) { return "list of texts"; }

template <typename T>
std::string default_text(const T& value) {
  return fmt::format("{}", value);
}
std::string default_text(const std::string& value) { return value.empty() ? "null" : value; }
template <typename T>
std::string default_text(const std::vector<T>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace

struct SectionReader::State {
  YamlMap map;
  std::string path;
  Findings* findings;
  std::set<std::string> bad;  ///< keys that had a problem
  std::map<std::string, SectionReader>
      sections;  ///< opened so far: opening one twice would report it twice
};

SectionReader::SectionReader(YamlMap map, std::string path, Findings& findings)
    : state_(std::make_shared<State>(State{std::move(map), std::move(path), &findings, {}, {}})) {}

SectionReader SectionReader::section(const std::string& key) {
  if (const auto found = state_->sections.find(key); found != state_->sections.end())
    return found->second;
  return state_->sections
      .emplace(key, SectionReader(state_->map.map(key), dotted(key), *state_->findings))
      .first->second;
}

bool SectionReader::has(const std::string& key) const { return state_->map.has(key); }

bool SectionReader::has_value(const std::string& key) const {
  return has(key) && state_->map.flow_text(key) != "~";
}

bool SectionReader::is_map(const std::string& key) const { return state_->map.is_map(key); }

bool SectionReader::empty() const { return state_->map.keys().empty(); }

std::vector<std::string> SectionReader::keys() const { return state_->map.keys(); }

std::string SectionReader::raw(const std::string& key) const { return state_->map.raw(key); }

const YamlMap& SectionReader::map() const { return state_->map; }

const std::string& SectionReader::path() const { return state_->path; }

std::string SectionReader::dotted(const std::string& key) const {
  return state_->path.empty() ? key : state_->path + "." + key;
}

void SectionReader::note_read(const std::string& key, KeyRead read) {
  if (state_->findings->reads != nullptr)
    state_->findings->reads->emplace(dotted(key), std::move(read));
}

template <typename T>
void SectionReader::note(const std::string& key, const std::optional<T>& default_value,
                         const std::string& range) {
  if (state_->findings->reads == nullptr) return;
  note_read(key, {type_text(T{}) + range, default_value ? default_text(*default_value) : "null"});
}

template <typename T>
std::optional<T> SectionReader::optional(const std::string& key) {
  note<T>(key, std::nullopt);
  const std::size_t before = state_->findings->problems.lines().size();
  std::optional<T> value = state_->map.optional<T>(key);
  if (state_->findings->problems.lines().size() != before || state_->map.is_unresolved(key))
    state_->bad.insert(key);
  return value;
}

template <typename T>
T SectionReader::required(const std::string& key) {
  note_read(key, {type_text(T{}), "required"});
  const std::size_t before = state_->findings->problems.lines().size();
  T value = state_->map.required<T>(key);
  if (state_->findings->problems.lines().size() != before || state_->map.is_unresolved(key))
    state_->bad.insert(key);
  return value;
}

template void SectionReader::note(const std::string&, const std::optional<bool>&,
                                  const std::string&);
template void SectionReader::note(const std::string&, const std::optional<int>&,
                                  const std::string&);
template void SectionReader::note(const std::string&, const std::optional<std::int64_t>&,
                                  const std::string&);
template void SectionReader::note(const std::string&, const std::optional<double>&,
                                  const std::string&);
template void SectionReader::note(const std::string&, const std::optional<std::string>&,
                                  const std::string&);
template void SectionReader::note(const std::string&, const std::optional<std::vector<double>>&,
                                  const std::string&);
template void SectionReader::note(const std::string&,
                                  const std::optional<std::vector<std::string>>&,
                                  const std::string&);
template std::optional<bool> SectionReader::optional(const std::string&);
template std::optional<int> SectionReader::optional(const std::string&);
template std::optional<std::int64_t> SectionReader::optional(const std::string&);
template std::optional<double> SectionReader::optional(const std::string&);
template std::optional<std::string> SectionReader::optional(const std::string&);
template std::optional<std::vector<double>> SectionReader::optional(const std::string&);
template std::optional<std::vector<std::string>> SectionReader::optional(const std::string&);
template int SectionReader::required(const std::string&);
template std::int64_t SectionReader::required(const std::string&);
template double SectionReader::required(const std::string&);
template std::string SectionReader::required(const std::string&);

std::string SectionReader::one_of(const std::string& key, const std::string& default_value,
                                  const std::vector<std::string>& legal) {
  note_read(key, {"one of " + join_names(legal), default_text(default_value)});
  std::string value = get<std::string>(key, default_value);
  if (!good({key.c_str()}) || std::ranges::find(legal, value) != legal.end()) return value;
  const std::string nearest = nearest_name(value, legal);
  problem(key, fmt::format("unknown value `{}`{}; expected {}", value,
                           nearest.empty() ? "" : fmt::format(", did you mean `{}`?", nearest),
                           join_names(legal)));
  return default_value;
}

std::optional<int> SectionReader::optional_positive(const std::string& key) {
  note<int>(key, std::nullopt, " ≥ 1");
  const std::optional<int> value = optional<int>(key);
  if (!value || *value > 0) return value;
  problem(key, fmt::format("must be at least 1, got {}", *value));
  return std::nullopt;
}

int SectionReader::positive(const std::string& key, int default_value) {
  note(key, std::optional(default_value), " ≥ 1");
  return optional_positive(key).value_or(default_value);
}

int SectionReader::required_positive(const std::string& key) {
  note_read(key, {"integer ≥ 1", "required"});
  const int value = required<int>(key);
  if (good({key.c_str()}) && value < 1)
    problem(key, fmt::format("must be at least 1, got {}", value));
  return value;
}

int SectionReader::at_most(const std::string& key, int value, int most, const std::string& why) {
  if (value <= most) return value;
  if (good({key.c_str()}))
    problem(key, fmt::format("expected at most {}, got {}: {}", most, value, why));
  return most;
}

double SectionReader::positive(const std::string& key, double default_value) {
  note(key, std::optional(default_value), " > 0");
  const double value = get<double>(key, default_value);
  if (value > 0) return value;
  problem(key, fmt::format("must be greater than 0, got {}", value));
  return default_value;
}

double SectionReader::fraction(const std::string& key, double default_value) {
  note(key, std::optional(default_value), " in [0, 1]");
  const double value = get<double>(key, default_value);
  if (value >= 0 && value <= 1) return value;
  problem(key, fmt::format("must be in [0, 1], got {}", value));
  return default_value;
}

template <typename T>
T SectionReader::at_least_zero(const std::string& key, T default_value) {
  note(key, std::optional(default_value), " ≥ 0");
  const T value = get<T>(key, default_value);
  if (value >= 0) return value;
  problem(key, fmt::format("must not be negative, got {}", value));
  return default_value;
}

double SectionReader::non_negative(const std::string& key, double default_value) {
  return at_least_zero(key, default_value);
}

int SectionReader::non_negative(const std::string& key, int default_value) {
  return at_least_zero(key, default_value);
}

std::int64_t SectionReader::non_negative(const std::string& key, std::int64_t default_value) {
  return at_least_zero(key, default_value);
}

bool SectionReader::good(std::initializer_list<const char*> keys) const {
  return std::ranges::none_of(keys, [&](const char* key) { return state_->bad.contains(key); });
}

void SectionReader::problem(const std::string& key, const std::string& text) {
  state_->bad.insert(key);
  if (!state_->map.is_unresolved(key)) state_->map.problem(key, text);
}

void SectionReader::warn(const std::string& key, const std::string& text) {
  state_->findings->warnings.push_back(terminal_line(state_->map.where(key) + ": " + text));
}

void SectionReader::unsupported(const std::string& key, const std::string& text,
                                bool changes_step) {
  state_->findings->unsupported.push_back(
      {dotted(key), text, changes_step, state_->map.where(key)});
}

void SectionReader::finish() {
  std::vector<std::string> known;
  for (const KnownKey& entry : known_keys_of(state_->path)) {
    known.push_back(entry.key);
    if (entry.group->use == KeyUse::kSection) section(entry.key).finish();
    if (!state_->map.has(entry.key)) continue;
    if (entry.group->use == KeyUse::kNeutral)
      check_neutral(entry.key, entry.group->neutral, entry.group->why);
    if (entry.group->use == KeyUse::kIgnored)
      state_->findings->without_effect.push_back(
          {dotted(entry.key), std::string(entry.group->why), state_->map.where(entry.key)});
    if (entry.group->use == KeyUse::kLater)
      note_later(entry.key, entry.group->neutral, entry.group->why);
  }
  for (const std::string& key : state_->map.keys()) {
    if (std::ranges::find(known, key) == known.end()) reject(key, known);
  }
}

/// A short text of the key's value: the scalar's text, "null", "[]", "a mapping" or "a list".
std::string SectionReader::text_of(const std::string& key) {
  if (state_->map.is_map(key)) return "a mapping";
  const std::string text = state_->map.flow_text(key);
  if (text == "~") return "null";
  return text.starts_with('[') && text != "[]" ? "a list" : text;
}

/// NeMo's form of a feature with arguments: {enabled: false, …}.
bool SectionReader::is_switched_off(const std::string& key) {
  return state_->map.is_map(key) && is_neutral(state_->map.map(key).raw("enabled"), "false");
}

void SectionReader::check_neutral(const std::string& key, std::string_view neutral,
                                  std::string_view why) {
  const std::string text = text_of(key);
  if (!good({key.c_str()}) || is_neutral(text, neutral) || is_switched_off(key)) return;
  problem(key, fmt::format("not supported (got {}): {}; remove it or set it to {}", text, why,
                           preferred(neutral)));
}

void SectionReader::note_later(const std::string& key, std::string_view neutral,
                               std::string_view why) {
  const std::string text = text_of(key);
  if (!good({key.c_str()}) || is_neutral(text, neutral)) return;
  unsupported(key, fmt::format("{}; {}={} does without", why, dotted(key), preferred(neutral)),
              /*changes_step=*/false);
}

void SectionReader::reject(const std::string& key, const std::vector<std::string>& known) {
  // No more are printed, and each search for a near name takes its time.
  if (state_->findings->problems.lines().size() >= kMostShownProblems)
    return problem(key, "unknown key; remove it");
  std::string underscored = key;
  std::ranges::replace(underscored, '-', '_');
  if (underscored != key && std::ranges::find(known, underscored) != known.end()) {
    return problem(
        key, fmt::format("unknown key: keys are written with underscores, `{}`", underscored));
  }
  if (const auto homes = sections_that_know(underscored); !homes.empty()) {
    const std::string here =
        state_->path.empty() ? "the top level" : fmt::format("section `{}`", state_->path);
    return problem(key, fmt::format("wrong section: `{}` belongs in {}, not in {}", underscored,
                                    join_names(homes), here));
  }
  const std::string nearest = nearest_name(key, known);
  problem(key, "unknown key" + (nearest.empty() ? "; remove it"
                                                : fmt::format("; did you mean `{}`?", nearest)));
}

}  // namespace trellis::trainer
