#include "analysis/import/import_report.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/import/setting_yaml.h"
#include "base/escape.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::array kAllStatus = {ImportStatus::kMapped, ImportStatus::kDefault,
                                   ImportStatus::kIgnored, ImportStatus::kUnsupported,
                                   ImportStatus::kUnclassified};

/// True if the key is in the result under its own name and value, with nothing to note about it.
bool is_same(const ImportedKey& key) {
  return key.status == ImportStatus::kMapped && key.note.empty() && key.settings.size() == 1 &&
         key.settings[0] == Setting{key.source.key, key.source.value};
}

std::string becomes(const ImportedKey& key) {
  std::string text;
  for (const Setting& setting : key.settings)
    text += (text.empty() ? "" : "; ") + setting.key + ": " + setting.value;
  return text;
}

/// The result for a key. For one without a result its place, which needs a look, and the reason.
std::string outcome(const ImportedKey& key) {
  if (key.status == ImportStatus::kUnsupported || key.status == ImportStatus::kUnclassified)
    return key.source.where + ": " + key.note;
  const std::string text = becomes(key);
  return text + (text.empty() || key.note.empty() ? "" : " - ") + key.note;
}

/// By setting: which other name it had.
std::map<std::string, std::string> old_names(const ImportedConfig& imported) {
  std::map<std::string, std::string> names;
  for (const ImportedKey& key : imported.keys) {
    for (const Setting& setting : key.settings) {
      if (setting.key != key.source.key) names[setting.key] = key.source.key;
    }
  }
  return names;
}

/// The keys that are not in the result, and why, as comments.
std::string left_out(const ImportedConfig& imported) {
  std::string text;
  for (const ImportStatus status : {ImportStatus::kUnclassified, ImportStatus::kUnsupported,
                                    ImportStatus::kIgnored, ImportStatus::kDefault}) {
    std::string rows;
    for (const ImportedKey& key : imported.keys) {
      if (key.status == status && key.settings.empty())
        rows += terminal_line(
                    fmt::format("#   {}: {} - {}", key.source.key, key.source.value, key.note)) +
                "\n";
    }
    if (!rows.empty()) text += fmt::format("\n# {}:\n", name(status)) + rows;
  }
  return text;
}

/// Settings that a key of the source decides.
std::set<std::string> keys_asked_for(const ImportedConfig& imported) {
  std::set<std::string> keys;
  for (const ImportedKey& key : imported.keys) {
    for (const Setting& setting : key.settings) keys.insert(setting.key);
  }
  return keys;
}

/// The settings that the result has in addition: defaults of the other program, and what a run
/// needs.
std::string assumed_text(const ImportedConfig& imported) {
  const std::set<std::string> asked = keys_asked_for(imported);
  std::string text;
  for (const Setting& setting : imported.implied) {
    if (!asked.contains(setting.key))
      text += (text.empty() ? "" : ", ") + setting.key + ": " + setting.value;
  }
  return text.empty() ? "" : "not in the source: " + terminal_line(text) + "\n";
}

std::string counts_text(const ImportedConfig& imported) {
  std::string text = fmt::format("{} keys:", imported.keys.size());
  for (const ImportStatus status : kAllStatus) {
    if (const std::size_t keys = count(imported, status); keys > 0)
      text += fmt::format("{} {} {}", text.back() == ':' ? "" : ",", keys, name(status));
  }
  return text;
}

}  // namespace

std::string import_yaml(const ImportedConfig& imported, const std::string& source) {
  const std::map<std::string, std::string> names = old_names(imported);
  const std::vector<Setting> settings = settings_of(imported);
  const std::set<std::string> asked = keys_asked_for(imported);
  const auto comment = [&](const std::string& key) {
    if (!asked.contains(key)) return std::string("not in the source");
    const auto name = names.find(key);
    return name == names.end() ? "" : "from " + name->second;
  };
  std::string text = terminal_line(fmt::format("# Imported from {} ({}). {}", source, imported.from,
                                               counts_text(imported))) +
                     "\n";
  return text + setting_yaml(settings, comment) + left_out(imported);
}

std::string import_text(const ImportedConfig& imported, bool all) {
  TextTable table({{"key", Align::kLeft},
                   {"value", Align::kLeft},
                   {"", Align::kLeft},
                   {"becomes, or why not", Align::kLeft}});
  for (const ImportedKey& key : imported.keys) {
    if (!all && (is_same(key) || key.status == ImportStatus::kDefault)) continue;
    table.add({key.source.key, key.source.value, name(key.status), outcome(key)});
  }
  return (table.empty() ? "" : table.text()) + counts_text(imported) + "\n" +
         assumed_text(imported);
}

json import_json(const ImportedConfig& imported, const std::string& source,
                 const std::vector<std::string>& problems) {
  json keys = json::array(), counts, settings = json::object();
  for (const ImportedKey& key : imported.keys) {
    json becomes = json::object();
    for (const Setting& setting : key.settings) becomes[setting.key] = setting.value;
    keys.push_back({{"key", key.source.key},
                    {"value", key.source.value},
                    {"where", key.source.where},
                    {"status", name(key.status)},
                    {"settings", becomes},
                    {"note", key.note}});
  }
  for (const ImportStatus status : kAllStatus) counts[name(status)] = count(imported, status);
  const std::set<std::string> asked = keys_asked_for(imported);
  json assumed = json::array();
  for (const Setting& setting : settings_of(imported)) {
    settings[setting.key] = setting.value;
    if (!asked.contains(setting.key)) assumed.push_back(setting.key);
  }
  return {{"schema", "trellis.import/1"},
          {"source", source},
          {"from", imported.from},
          {"counts", counts},
          {"keys", keys},
          {"settings", settings},
          {"not_in_the_source", assumed},
          {"problems", problems}};
}

}  // namespace trellis::analysis
