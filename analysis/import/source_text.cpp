#include "analysis/import/source_text.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"

namespace trellis::analysis {
namespace {

/// Above it a wrong file was named.
constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

bool is_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

std::string read_source_text(const std::string& file) {
  std::string text = read_input_file(file, kMostBytes);
  if (is_utf8(text)) return text;
  int line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (!is_utf8(text.substr(begin, end - begin))) break;
    begin = end + 1;
  }
  throw ConfigError(fmt::format("{}:{}: expected a text in UTF-8, got other bytes", file, line));
}

}  // namespace trellis::analysis
