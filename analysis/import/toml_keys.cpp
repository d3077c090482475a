#include "analysis/import/toml_keys.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

// A header such as "[=" breaks what toml++ 3.3 asserts of a key's first character; the code after
// it reports the mistake. With NDEBUG the assertion would be a promise to the optimizer.
#undef NDEBUG
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "analysis/import/megatron_args.h"
#include "base/error.h"
#include "base/escape.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::analysis {
namespace {

std::string yaml_value(const toml::node& node);

std::string yaml_list(const toml::array& array) {
  std::string text;
  for (const toml::node& each : array) text += (text.empty() ? "" : ", ") + yaml_value(each);
  return "[" + text + "]";
}

std::string yaml_map(const toml::table& table) {
  std::string text;
  for (const auto& [key, value] : table)
    text +=
        (text.empty() ? "" : ", ") + yaml_scalar(std::string(key.str())) + ": " + yaml_value(value);
  return "{" + text + "}";
}

/// Dates and times as the text that they are.
std::string yaml_value(const toml::node& node) {
  if (const auto* array = node.as_array()) return yaml_list(*array);
  if (const auto* table = node.as_table()) return yaml_map(*table);
  if (const auto* text = node.as_string()) return yaml_scalar(text->get());
  if (const auto* integer = node.as_integer()) return fmt::format("{}", integer->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  std::ostringstream text;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_date<decltype(value)> || toml::is_time<decltype(value)> ||
                  toml::is_date_time<decltype(value)>)
      text << value;
  });
  return trainer::YamlWriter::quoted(text.str());
}

struct Found {
  SourceKey key;
  toml::source_position place;
};

void add(const toml::table& table, const std::string& path, const std::string& name,
         std::vector<Found>& found) {
  for (const auto& [key, value] : table) {
    const std::string dotted = (path.empty() ? "" : path + ".") + std::string(key.str());
    const toml::table* inner = value.as_table();
    if (inner != nullptr && !inner->empty()) {
      add(*inner, dotted, name, found);
      continue;
    }
    const toml::source_position place = key.source().begin;
    found.push_back({{dotted, yaml_value(value), fmt::format("{}:{}", name, place.line)}, place});
  }
}

/// Throws ConfigError for what a line of the result cannot hold.
void check(const SourceKey& key) {
  if (!has_controls(key.key + key.value) && key.key.find_first_of(" \t:#") == std::string::npos)
    return;
  throw ConfigError(terminal_line(fmt::format(
      "{}: {}: expected a key of letters, digits, '_' and '-', and a value without control "
      "characters, got {}",
      key.where, key.key, key.value)));
}

/// The parser makes a table of each part of a dotted key, and tables end one inside another.
constexpr int kMostParts = 200;

/// Throws ConfigError for a key of more parts: dots between names, outside texts and comments.
void refuse_long_keys(std::string_view text, const std::string& name) {
  int parts = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      const std::string quote(text.substr(at, 3) == std::string(3, c) ? 3 : 1, c);
      at += quote.size();
      while (at < text.size() && text.substr(at, quote.size()) != quote)
        at += c == '"' && text[at] == '\\' ? 2 : 1;
      at += quote.size() - 1;
    } else if (c == '.') {
      if (++parts < kMostParts) continue;
      throw ConfigError(fmt::format("{}:{}: a key of more than {} parts: expected a shorter one",
                                    name, 1 + std::ranges::count(text.substr(0, at), '\n'),
                                    kMostParts));
    } else if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) {
      parts = 0;
    }
  }
}

}  // namespace

std::vector<SourceKey> toml_keys(const std::string& text, const std::string& name) {
  refuse_long_keys(text, name);
  std::vector<Found> found;
  try {
    const toml::table table = toml::parse(text, name);
    add(table, "", name, found);
  } catch (const toml::parse_error& error) {
    throw ConfigError(terminal_line(fmt::format("{}:{}: expected TOML: {}", name,
                                                error.source().begin.line, error.description())));
  }
  std::ranges::stable_sort(found, [](const Found& a, const Found& b) { return a.place < b.place; });
  std::vector<SourceKey> keys;
  for (Found& each : found) {
    check(each.key);
    keys.push_back(std::move(each.key));
  }
  return keys;
}

}  // namespace trellis::analysis
