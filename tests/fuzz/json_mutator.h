#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/fuzz/changed_files.h"

/// Changes of a document of JSON that keep it one: other forms, extreme numbers, hostile texts,
/// missing and additional members, deep nesting.
namespace trellis::fuzz {

inline nlohmann::json nested(int depth) {
  nlohmann::json value = 1;
  for (int i = 0; i < depth; ++i) value = nlohmann::json::array({std::move(value)});
  return value;
}

inline nlohmann::json hostile_value(std::mt19937_64& random) {
  using nlohmann::json;
  switch (random() % 14) {
    case 0: return nullptr;
    case 1: return json::object();
    case 2: return json::array();
    case 3: return random() % 2 == 0;
    case 4: return std::numeric_limits<std::int64_t>::max();
    case 5: return std::numeric_limits<std::int64_t>::min();
    case 6: return std::numeric_limits<std::uint64_t>::max();
    case 7: return random() % 2 == 0 ? 0 : -1;
    case 8: return random() % 2 == 0 ? 1e308 : -1e308;
    case 9: return std::int64_t{1} << 53;
    case 10: return nested(static_cast<int>(random() % 300));
    case 11: return "";
    case 12:
      return std::string("\n") + kForged + "\n\x1b[31m\x7f\u009b\u202e</script><b>=1+1|`[x](y)";
    default: return std::string(1 + random() % 5000, 'x');
  }
}

/// Every value of the document, the document itself among them.
inline void collect(nlohmann::json& value, std::vector<nlohmann::json*>& all) {
  all.push_back(&value);
  for (nlohmann::json& part : value) {
    if (value.is_structured()) collect(part, all);
  }
}

inline void change_once(nlohmann::json& document, std::mt19937_64& random) {
  std::vector<nlohmann::json*> all;
  collect(document, all);
  nlohmann::json& value = *all[random() % all.size()];
  const bool filled = value.is_structured() && !value.empty();
  switch (random() % 5) {
    case 0:
      if (value.is_object() && filled)
        value.erase(
            std::next(value.begin(), static_cast<std::ptrdiff_t>(random() % value.size())).key());
      else if (filled)
        value.erase(random() % value.size());
      break;
    case 1:
      if (value.is_array() && filled)
        value.push_back(value[random() % value.size()]);
      else if (value.is_object())
        value[random() % 2 == 0 ? "new_ps" : std::string("\n") + kForged] = hostile_value(random);
      break;
    default: value = hostile_value(random);
  }
}

/// Half of the changes are of bytes.
inline std::string mutate_json(std::string text, std::mt19937_64& random) {
  if (random() % 2 == 0) return mutate(std::move(text), random);
  nlohmann::json document = nlohmann::json::parse(text);
  for (std::size_t changes = 1 + random() % 3; changes > 0; --changes)
    change_once(document, random);
  return document.dump();
}

/// The same of one line of several documents; a line may be there twice, or none.
inline std::string mutate_json_lines(const std::string& text, std::mt19937_64& random) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const auto line = lines.begin() + static_cast<std::ptrdiff_t>(random() % lines.size());
  switch (random() % 6) {
    case 0: lines.insert(line, lines[random() % lines.size()]); break;
    case 1: lines.erase(line); break;
    case 2: std::swap(*line, lines[random() % lines.size()]); break;
    default: *line = mutate_json(*line, random);
  }
  std::string out;
  for (const std::string& each : lines) out += each + "\n";
  return out;
}

}  // namespace trellis::fuzz
