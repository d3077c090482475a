#pragma once

#include <string>
#include <vector>

#include "analysis/import/imported_config.h"

namespace trellis::analysis {

/// Every key of a TOML text in the order of its lines, tables replaced by their keys
/// ("training.dataloader.num_workers"), values as YAML on one line. An empty table is one key.
/// `name`: the file. Throws ConfigError (file:line) for what is no TOML.
[[nodiscard]] std::vector<SourceKey> toml_keys(const std::string& text, const std::string& name);

}  // namespace trellis::analysis
