#pragma once

#include <functional>
#include <string>
#include <vector>

#include "analysis/import/imported_config.h"

namespace trellis::analysis {

/// Settings as a YAML file: sections in the order of their first key. `comment(key)`: after a
/// setting; "": none.
[[nodiscard]] std::string setting_yaml(
    const std::vector<Setting>& settings,
    const std::function<std::string(const std::string& key)>& comment = {});

}  // namespace trellis::analysis
