#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace trellis::sim {

/// Describes the value of a key `software`: its releases, what each changed, and every number of
/// the chosen one with its source.
[[nodiscard]] std::string software_text(const std::string& software);
/// The same as a document's row.
[[nodiscard]] nlohmann::json software_json(const std::string& software);

}  // namespace trellis::sim
