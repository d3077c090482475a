#include "trainer/config/reader/known_keys.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace trellis::trainer {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool same_scalar(std::string_view a, std::string_view b) {
  const auto x = number(a), y = number(b);
  if (x && y) return *x == *y;
  return lower(a == "~" ? "null" : a) == lower(b);
}

}  // namespace

std::vector<std::string> split_texts(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_neutral(std::string_view scalar, std::string_view neutral) {
  const auto values = split_texts(neutral, '|');
  return std::ranges::any_of(values,
                             [&](const std::string& value) { return same_scalar(scalar, value); });
}

}  // namespace trellis::trainer
