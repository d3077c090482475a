#pragma once

#include <functional>
#include <string>
#include <vector>

#include "analysis/import/imported_config.h"
#include "base/yaml/yaml.h"

namespace trellis::analysis {

/// Every key of a YAML file, after overrides and interpolation, in file order. A mapping
/// is replaced by its keys where `opens(dotted key)` says so, and is one key otherwise; an empty
/// one always is. Throws ConfigError (file:line:key) for what is no YAML, for interpolations that
/// lead in a circle or nowhere, and for duplicate keys.
[[nodiscard]] std::vector<SourceKey> yaml_keys(
    const std::string& file, const std::vector<std::string>& overrides,
    const std::function<bool(const std::string& key)>& opens);
/// The same for a configuration of Hydra: its keys and those of the files that it names, and a key
/// for each entry of its lists `defaults`.
struct ComposedKeys {
  std::vector<ImportedKey> defaults;
  std::vector<SourceKey> keys;
};
[[nodiscard]] ComposedKeys composed_yaml_keys(
    const std::string& file, const std::vector<std::string>& overrides,
    const std::function<bool(const std::string& key)>& opens);
/// yaml_keys() of a text that is in no file, every mapping opened. `name`: in place of a file's.
[[nodiscard]] std::vector<SourceKey> yaml_keys_of_text(const std::string& text,
                                                       const std::string& name);

}  // namespace trellis::analysis
