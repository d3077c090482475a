#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace trellis {

/// The JSON document that `text` is. Throws ConfigError "where: this is no JSON: … at line 1,
/// column 2 …; expected EXPECTED" when it is none, or is nested more than 200 deep: what walks
/// through a document does so by recursion.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& where,
                                        const std::string& expected);

}  // namespace trellis
