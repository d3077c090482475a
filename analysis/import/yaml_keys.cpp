#include "analysis/import/yaml_keys.h"

#include "analysis/import/source_text.h"

namespace trellis::analysis {
namespace {

/// "file:12:model.seed" without its key.
std::string place_of(const std::string& where, const std::string& key) {
  return where.ends_with(":" + key) ? where.substr(0, where.size() - key.size() - 1) : where;
}

void add(const YamlMap& map, const std::string& path,
         const std::function<bool(const std::string&)>& opens, std::vector<SourceKey>& keys) {
  for (const std::string& key : map.keys()) {
    const std::string dotted = path.empty() ? key : path + "." + key;
    map.allow_any(key);
    if (map.is_map(key) && opens(dotted) && !map.map(key).keys().empty()) {
      add(map.map(key), dotted, opens, keys);
    } else {
      keys.push_back({dotted, map.flow_text(key), place_of(map.where(key), dotted)});
    }
  }
}

}  // namespace

std::vector<SourceKey> yaml_keys(const std::string& file, const std::vector<std::string>& overrides,
                                 const std::function<bool(const std::string& key)>& opens) {
  const YamlDocument document = YamlDocument::parse(read_source_text(file), file, overrides);
  std::vector<SourceKey> keys;
  add(document.root(), "", opens, keys);
  document.problems().throw_if_any();
  return keys;
}

}  // namespace trellis::analysis
