#include "analysis/import/imported_config.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "analysis/import/schema_keys.h"
#include "base/error.h"
#include "trainer/config/reader/known_keys.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::analysis {
namespace {

using trainer::KeyUse;

/// The text of a scalar without its quotes; of a list or a mapping as it is.
std::string scalar_of(const std::string& value) {
  const bool quoted = value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
                      value.back() == value.front();
  return quoted ? value.substr(1, value.size() - 2) : value;
}

void decide(ImportedKey& imported, Setting setting, const trainer::KeyGroup& group) {
  switch (group.use) {
    case KeyUse::kSupported:
    case KeyUse::kSection:
      imported.status = ImportStatus::kMapped;
      imported.settings.push_back(std::move(setting));
      return;
    case KeyUse::kIgnored:
      imported.status = ImportStatus::kIgnored;
      imported.note = group.why;
      return;
    case KeyUse::kLater:
    case KeyUse::kNeutral:
      imported.status = trainer::is_neutral(scalar_of(setting.value), group.neutral)
                            ? ImportStatus::kDefault
                            : ImportStatus::kUnsupported;
      imported.note = group.why;
      return;
  }
}

}  // namespace

const char* name(ImportStatus status) {
  switch (status) {
    case ImportStatus::kMapped: return "mapped";
    case ImportStatus::kDefault: return "default";
    case ImportStatus::kIgnored: return "ignored";
    case ImportStatus::kUnsupported: return "unsupported";
    case ImportStatus::kUnclassified: return "unclassified";
  }
  return "";
}

std::vector<Setting> settings_of(const ImportedConfig& imported) {
  std::vector<Setting> settings;
  std::map<std::string, std::pair<std::string, std::string>> seen;  // key → value, place
  Problems problems;
  for (const ImportedKey& key : imported.keys) {
    for (const Setting& setting : key.settings) {
      const std::string place = key.source.where + ": " + key.source.key;
      const auto [at, is_new] = seen.try_emplace(setting.key, setting.value, place);
      if (is_new) {
        settings.push_back(setting);
      } else if (at->second.first != setting.value) {
        problems.add(place, "asks for " + setting.key + ": " + setting.value + ", and " +
                                at->second.second + " for " + at->second.first +
                                ": remove one of the two");
      }
    }
  }
  problems.throw_if_any();
  for (const Setting& setting : imported.implied) {
    if (!seen.contains(setting.key)) settings.push_back(setting);
  }
  return settings;
}

ImportedKey classify(SourceKey source, Setting setting) {
  ImportedKey imported{std::move(source)};
  const SchemaKey known = schema_key(setting.key);
  if (known.group == nullptr) {
    imported.note = known.unknown;
  } else {
    decide(imported, std::move(setting), *known.group);
  }
  return imported;
}

ImportedKey ignored(SourceKey source, std::string why) {
  return {std::move(source), ImportStatus::kIgnored, {}, std::move(why)};
}

ImportedKey at_default(SourceKey source, std::string why) {
  return {std::move(source), ImportStatus::kDefault, {}, std::move(why)};
}

ImportedKey unsupported(SourceKey source, std::string advice) {
  return {std::move(source), ImportStatus::kUnsupported, {}, std::move(advice)};
}

ImportedKey mapped(const SourceKey& source, std::vector<Setting> settings, std::string note) {
  ImportedKey result{source, ImportStatus::kMapped, {}, std::move(note)}, without_effect;
  for (Setting& setting : settings) {
    ImportedKey one = classify(source, std::move(setting));
    if (one.status == ImportStatus::kUnsupported || one.status == ImportStatus::kUnclassified)
      return one;
    if (one.status == ImportStatus::kMapped) {
      std::ranges::move(one.settings, std::back_inserter(result.settings));
    } else {
      without_effect = std::move(one);
    }
  }
  return result.settings.empty() && !settings.empty() ? without_effect : result;
}

void move_paths(ImportedConfig& imported, const std::filesystem::path& before,
                const std::filesystem::path& after) {
  namespace fs = std::filesystem;
  const auto folder = [](const fs::path& path) { return path.empty() ? fs::path(".") : path; };
  if (fs::weakly_canonical(folder(before)) == fs::weakly_canonical(folder(after))) return;
  const auto move = [&](Setting& setting) {
    const fs::path path = scalar_of(setting.value);
    if (setting.key != "model.model_config" || path.empty() || path.is_absolute()) return;
    const fs::path moved = fs::proximate(before / path, folder(after));
    setting.value = trainer::YamlWriter::quoted(moved.string());
  };
  for (ImportedKey& key : imported.keys) std::ranges::for_each(key.settings, move);
  std::ranges::for_each(imported.implied, move);
}

std::size_t count(const ImportedConfig& imported, ImportStatus status) {
  return static_cast<std::size_t>(std::ranges::count(imported.keys, status, &ImportedKey::status));
}

}  // namespace trellis::analysis
