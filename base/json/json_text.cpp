#include "base/json/json_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json/json_builder.h"

namespace trellis {

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const std::string& expected) {
  if (text.empty()) throw ConfigError(where + ": the file is empty; expected " + expected);
  try {
    return JsonBuilder<nlohmann::json>::parse(text, {});
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what() + "; expected " + expected);
  }
}

}  // namespace trellis
