#include "analysis/import/yaml_keys.h"

#include <utility>

#include "analysis/import/source_text.h"
#include "base/address.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/yaml/yaml_compose.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::analysis {
namespace {

/// "file:12:model.seed" without its key.
std::string place_of(const std::string& where, const std::string& key) {
  return where.ends_with(":" + key) ? where.substr(0, where.size() - key.size() - 1) : where;
}

/// True if the text of a value reads back as that value: a quote or a bracket at a bad place may
/// not.
bool reads_back(const std::string& value) {
  try {
    const YamlDocument document = YamlDocument::parse("key: " + value, "value");
    return document.root().flow_text("key") == value && document.root().keys().size() == 1;
  } catch (const ConfigError&) {
    return false;
  }
}

/// Throws ConfigError for what a line of the result cannot hold.
void check(const SourceKey& found) {
  if (!has_controls(found.key + found.value) && reads_back(found.value)) return;
  throw ConfigError(terminal_line(found.where + ":" + found.key) +
                    ": expected a value without control characters that can be written on one "
                    "line, got " +
                    terminal_line(found.value));
}

void add(const YamlMap& map, const std::string& path,
         const std::function<bool(const std::string&)>& opens, std::vector<SourceKey>& keys) {
  for (const std::string& key : map.keys()) {
    const std::string dotted = path.empty() ? key : path + "." + key;
    map.allow_any(key);
    if (map.is_map(key) && opens(dotted) && !map.map(key).keys().empty()) {
      add(map.map(key), dotted, opens, keys);
    } else {
      SourceKey found{dotted, map.flow_text(key), place_of(map.where(key), dotted)};
      check(found);
      keys.push_back(std::move(found));
    }
  }
}

std::vector<SourceKey> keys_of(const YamlDocument& document,
                               const std::function<bool(const std::string&)>& opens) {
  std::vector<SourceKey> keys;
  for (const std::string& where : document.addresses_with_keys())
    log_warning(where + ": imported without its keys: " + kKeysAdvice);
  add(document.root(), "", opens, keys);
  document.problems().throw_if_any();
  return keys;
}

ImportedKey imported(const YamlDefault& entry) {
  const SourceKey source{entry.name, trainer::YamlWriter::quoted(entry.entry), entry.where};
  check(source);
  switch (entry.kind) {
    case YamlDefault::Kind::kTaken: return at_default(source, "taken: " + entry.note);
    case YamlDefault::Kind::kNothing: return ignored(source, entry.note);
    case YamlDefault::Kind::kMissing: break;
  }
  return unsupported(source, entry.note);
}

}  // namespace

ComposedKeys composed_yaml_keys(const std::string& file, const std::vector<std::string>& overrides,
                                const std::function<bool(const std::string& key)>& opens) {
  const ComposedYaml composed = compose_yaml(
      file, overrides, [](const auto& path) { return read_source_text(path.string()); });
  ComposedKeys all{.keys = keys_of(composed.document, opens)};
  for (const YamlDefault& entry : composed.defaults) all.defaults.push_back(imported(entry));
  return all;
}

std::vector<SourceKey> yaml_keys(const std::string& file, const std::vector<std::string>& overrides,
                                 const std::function<bool(const std::string& key)>& opens) {
  return keys_of(YamlDocument::parse(read_source_text(file), file, overrides), opens);
}

std::vector<SourceKey> yaml_keys_of_text(const std::string& text, const std::string& name) {
  return keys_of(YamlDocument::parse(text, name), [](const std::string&) { return true; });
}

}  // namespace trellis::analysis
