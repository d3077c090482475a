#pragma once

#include <string>

namespace trellis::cli {

/// The keys of a configuration: type, default, whose key it is, and why one does not act.
/// `section`: a dotted path, or "" for all of them. Throws ConfigError when there is no such
/// section. `json`: one document (schema trellis.keys/1), else a table per section.
[[nodiscard]] std::string describe_keys(const std::string& section, bool json);

}  // namespace trellis::cli
