#include "device/compiler/graph/scalars.h"

#include <cmath>
#include <cstdlib>

namespace trellis::device {
namespace {

double to_number(const std::string& word) {
  if (word == "True" || word == "true") return 1;
  if (word == "False" || word == "false") return 0;
  return std::strtod(word.c_str(), nullptr);  // reads inf and nan too
}

}  // namespace

Scalars::Scalars(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    int depth = 0;
    std::size_t end = at;
    for (; end < text.size() && (text[end] != ' ' || depth > 0); ++end) {
      if (text[end] == '[') ++depth;
      if (text[end] == ']') --depth;
    }
    const std::string_view word = text.substr(at, end - at);
    if (const auto equals = word.find('='); equals != std::string_view::npos) {
      values_.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    }
    at = end + 1;
  }
}

const std::string* Scalars::find(std::string_view name) const {
  for (const auto& [key, value] : values_) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::optional<double> Scalars::maybe(std::string_view name) const {
  const std::string* value = find(name);
  if (value == nullptr || value->empty() || *value == "None") return std::nullopt;
  return to_number(*value);
}

double Scalars::number(std::string_view name, double otherwise) const {
  return maybe(name).value_or(otherwise);
}

std::int64_t Scalars::integer(std::string_view name, std::int64_t otherwise) const {
  return static_cast<std::int64_t>(number(name, static_cast<double>(otherwise)));
}

std::string Scalars::text(std::string_view name) const {
  const std::string* value = find(name);
  return value == nullptr ? std::string() : *value;
}

std::vector<std::int64_t> Scalars::list(std::string_view name) const {
  std::vector<std::int64_t> out;
  const std::string* value = find(name);
  if (value == nullptr) return out;
  const char* at = value->c_str();
  while (*at != '\0') {
    if (*at == '-' || (*at >= '0' && *at <= '9')) {
      char* end = nullptr;
      out.push_back(std::strtoll(at, &end, 10));
      at = end;
    } else {
      ++at;
    }
  }
  return out;
}

}  // namespace trellis::device
