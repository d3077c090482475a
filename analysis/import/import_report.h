#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "analysis/import/imported_config.h"

namespace trellis::analysis {

/// The result as a YAML file of this program: sections and keys in the order of settings_of(),
/// where each comes from when its name is another one, and as comments at the end what is ignored
/// or not supported, with the reasons. Throws as settings_of().
[[nodiscard]] std::string import_yaml(const ImportedConfig& imported, const std::string& source);

/// A table of the keys that need a look: renamed, ignored, unsupported, unclassified; with `all`
/// every key. Then how many there are of each kind.
[[nodiscard]] std::string import_text(const ImportedConfig& imported, bool all);

/// Schema trellis.import/1. `problems`: of the result as a configuration.
[[nodiscard]] nlohmann::json import_json(const ImportedConfig& imported, const std::string& source,
                                         const std::vector<std::string>& problems);

}  // namespace trellis::analysis
