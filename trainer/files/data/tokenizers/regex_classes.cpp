#include "trainer/files/data/tokenizers/regex_classes.h"

#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/files/data/tokenizers/reference_tables.h"

namespace trellis::trainer {
namespace {

constexpr const char* kSpaces =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";

const std::vector<CharSet>* newer_of(std::string_view name) {
  using enum CharSet;
  static const std::pair<std::string_view, std::vector<CharSet>> kNames[] = {
      {"L", {kNewUpper, kNewLower, kNewTitle, kNewModifiers, kNewOtherLetters}},
      {"Lu", {kNewUpper}},
      {"Ll", {kNewLower}},
      {"Lt", {kNewTitle}},
      {"Lm", {kNewModifiers}},
      {"Lo", {kNewOtherLetters}},
      {"M", {kNewMarks}},
      {"N", {kNewNumbers}},
      {"P", {kNewPunctuation}}};
  for (const auto& [known, sets] : kNames)
    if (name == known) return &sets;
  return nullptr;
}

/// \x{…}-\x{…} of a set.
std::string ranges_of(const std::vector<CharSet>& sets) {
  std::string text;
  char range[40];
  for (const CharSet set : sets) {
    const auto numbers = reference_set(set);
    std::uint32_t code = 0;
    for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
      const std::uint32_t first = code + numbers[i];
      code = first + numbers[i + 1];
      if (code == first) continue;
      std::snprintf(range, sizeof range, "\\x{%X}-\\x{%X}", first, code - 1);
      text += range;
    }
  }
  return text;
}

/// A class that begins at a backslash, as it is to be written; "" for what stays. `size`: of it.
std::string class_at(std::string_view rest, bool inside, std::size_t& size) {
  const char kind = rest[1];
  if (kind == 's' || kind == 'S') {
    size = 2;
    if (inside) return kind == 's' ? kSpaces : "";
    return (kind == 's' ? "[" : "[^") + std::string(kSpaces) + "]";
  }
  if (kind != 'p' && kind != 'P') return "";
  const std::size_t close = rest.find('}');
  if (rest.size() < 4 || rest[2] != '{' || close == std::string_view::npos) return "";
  std::string_view name = rest.substr(3, close - 3);
  const bool inverted = name.starts_with('^');
  if (inverted) name.remove_prefix(1);
  const std::vector<CharSet>* sets = newer_of(name);
  const bool negative = (kind == 'P') != inverted;
  if (sets == nullptr || (negative && inside)) return "";
  size = close + 1;
  const std::string content = "\\p{" + std::string(name) + "}" + ranges_of(*sets);
  return inside ? content : (negative ? "[^" : "[") + content + "]";
}

}  // namespace

std::string with_reference_classes(const std::string& pattern) {
  std::string result;
  bool inside = false;
  for (std::size_t i = 0; i < pattern.size();) {
    std::size_t size = 1;
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      size = 2;
      const std::string written = class_at(std::string_view(pattern).substr(i), inside, size);
      result += written.empty() ? pattern.substr(i, size) : written;
      i += size;
      continue;
    }
    if (pattern[i] == '[' && !inside) {
      inside = true;
      // A bracket that comes first is a character of the class.
      while (i + size < pattern.size() && pattern[i + size] == '^') ++size;
      if (i + size < pattern.size() && pattern[i + size] == ']') ++size;
    } else if (pattern[i] == ']') {
      inside = false;
    }
    result += pattern.substr(i, size);
    i += size;
  }
  return result;
}

}  // namespace trellis::trainer
