#include "base/json_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"

namespace trellis {
namespace {

constexpr int kDeepest = 200;

/// "parse error at line 1, column 2: …": the library's message without its number.
std::string reason_of(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where,
                          const std::string& expected) {
  if (text.empty()) throw ConfigError(where + ": the file is empty; expected " + expected);
  try {
    return nlohmann::json::parse(
        text, [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
          if (depth > kDeepest)
            throw ConfigError(where + ": lists and objects are nested more than " +
                              std::to_string(kDeepest) + " deep; expected " + expected);
          return true;
        });
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(where + ": this is no JSON: " + terminal_line(reason_of(error)) +
                      "; expected " + expected);
  }
}

}  // namespace trellis
