#pragma once

#include <string>

namespace trellis::analysis {

/// The text of a configuration. Throws ConfigError: it cannot be read, is far too large for one, or
/// (file:line) is no UTF-8.
[[nodiscard]] std::string read_source_text(const std::string& file);

}  // namespace trellis::analysis
