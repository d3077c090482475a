#include "analysis/export/resolved_settings.h"

#include <array>
#include <charconv>
#include <utility>

#include "analysis/import/setting_yaml.h"
#include "analysis/import/yaml_keys.h"
#include "base/yaml/yaml.h"
#include "trainer/config/load/load_run_config.h"
#include "trainer/config/load/resolved_yaml.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::analysis {
namespace {

/// Names that the schema knows for one setting: that of the file, that of the resolved file.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOtherNames = {{
    {"data.seq_length", "model.encoder_seq_length"},
    {"model.num_query_groups", "model.num_kv_heads"},
    {"model.rope_theta", "model.position_freq_base"},
    {"exp_manager.checkpoint_callback_params.every_n_steps",
     "exp_manager.checkpoint_callback_params.every_n_train_steps"},
    {"exp_manager.max_time_per_run", "trainer.max_time"},
    {"exp_manager.async_save", "exp_manager.async_checkpointing"},
}};

template <typename Number>
std::optional<Number> parsed(const std::string& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool opens(const std::string&) { return true; }

}  // namespace

std::string scalar_text(const std::string& yaml) {
  const YamlMap root = YamlDocument::parse("key: " + yaml, "value").root();
  const std::string text = root.raw("key");
  const bool quoted = yaml.starts_with('"') || yaml.starts_with('\'');
  return !quoted && trainer::is_neutral(text, "null") ? "" : text;
}

std::vector<std::string> elements(const std::string& yaml) {
  if (!yaml.starts_with('[')) {
    const std::string one = yaml.empty() ? "" : scalar_text(yaml);
    return one.empty() ? std::vector<std::string>{} : std::vector<std::string>{one};
  }
  const YamlMap root = YamlDocument::parse("key: " + yaml, "value").root();
  return root.get<std::vector<std::string>>("key", {});
}

std::string resolved_name(std::string_view key) {
  for (const auto& [other, name] : kOtherNames)
    if (key == other) return std::string(name);
  return std::string(key);
}

ResolvedSettings ResolvedSettings::of_file(const std::string& file,
                                           const std::vector<std::string>& overrides) {
  ResolvedSettings settings;
  settings.config_ = trainer::load_run_config(file, overrides);
  settings.given_ = yaml_keys(file, overrides, opens);
  settings.all_ = yaml_keys_of_text(settings.config_.resolved_yaml, "resolved");
  settings.index();
  return settings;
}

std::optional<ResolvedSettings> ResolvedSettings::of_settings(
    const std::vector<Setting>& settings) {
  const std::string yaml = setting_yaml(settings);
  trainer::RunCheck check = trainer::check_run_config_text(yaml, "result");
  if (!check.problems.empty()) return std::nullopt;
  ResolvedSettings result;
  result.config_ = std::move(check.config);
  const YamlDocument document = YamlDocument::parse(yaml, "result");
  result.given_ = yaml_keys_of_text(yaml, "result");
  result.all_ =
      yaml_keys_of_text(trainer::to_resolved_yaml(result.config_, document.root()), "resolved");
  result.index();
  return result;
}

void ResolvedSettings::index() {
  for (const SourceKey& key : all_) values_[resolved_name(key.key)] = key.value;
  for (const SourceKey& key : given_) given_values_[key.key] = key.value;
}

std::string ResolvedSettings::yaml(std::string_view key) const {
  const auto found = values_.find(resolved_name(key));
  return found == values_.end() ? "" : found->second;
}

std::string ResolvedSettings::text(std::string_view key) const {
  const std::string value = yaml(key);
  return value.empty() ? "" : scalar_text(value);
}

bool ResolvedSettings::is(std::string_view key, std::string_view value) const {
  const std::string found = text(key);
  return found.empty() ? value == "null" : trainer::is_neutral(found, value);
}

std::optional<std::int64_t> ResolvedSettings::integer(std::string_view key) const {
  return parsed<std::int64_t>(text(key));
}

std::optional<double> ResolvedSettings::number(std::string_view key) const {
  return parsed<double>(text(key));
}

std::vector<std::string> ResolvedSettings::list(std::string_view key) const {
  return elements(yaml(key));
}

std::string ResolvedSettings::as_given(std::string_view key) const {
  const auto found = given_values_.find(key);
  return found == given_values_.end() ? "" : scalar_text(found->second);
}

}  // namespace trellis::analysis
