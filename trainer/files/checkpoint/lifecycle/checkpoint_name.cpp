#include "trainer/files/checkpoint/lifecycle/checkpoint_name.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::checkpoint {
namespace {

constexpr const char* kKey = "exp_manager.checkpoint_callback_params.filename";

[[noreturn]] void refuse(const std::string& pattern, const std::string& why) {
  throw ConfigError(std::string(kKey) + ": " + pattern + ": " + why +
                    "; such as <name>--{step}-{val_loss:.4f}");
}

/// Linux has no longer name of a folder.
constexpr std::size_t kMostName = 255;

/// True if a width or a precision of `format` exceeds the longest name. It may not even fit an int.
bool is_too_wide(const std::string& format) {
  std::size_t number = 0;
  for (const char c : format) {
    number =
        c >= '0' && c <= '9' ? std::min<std::size_t>(number * 10 + (c - '0'), kMostName + 1) : 0;
    if (number > kMostName) return true;
  }
  return false;
}

/// As Python prints a float.
std::string float_text(double value) {
  std::string text = fmt::format("{}", value);
  const bool whole = std::isfinite(value) && text.find_first_of(".e") == std::string::npos;
  return whole ? text + ".0" : text;
}

std::string number_text(const std::string& pattern, const std::string& name, double value,
                        const std::string& format) {
  const bool whole = name == "step" || name == "epoch";
  if (std::isnan(value)) {
    (void)number_text(pattern, name, 0, format);  // the format must be one
    return "nan";
  }
  if (format.empty()) return whole ? fmt::format("{}", std::llround(value)) : float_text(value);
  if (is_too_wide(format))
    refuse(pattern, fmt::format("the format {} of {} is wider than the {} characters of a name",
                                format, name, kMostName));
  try {
    const std::string spec = "{:" + format + "}";
    if (format.ends_with('d')) return fmt::format(fmt::runtime(spec), std::llround(value));
    return fmt::format(fmt::runtime(spec), value);
  } catch (const fmt::format_error& error) {
    refuse(pattern, "the format " + format + " of " + name + " is none: " + error.what());
  }
}

}  // namespace

std::string checkpoint_name(const std::string& pattern, const NameMetrics& metrics,
                            bool insert_names) {
  std::string text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') {
      text += pattern[i];
      continue;
    }
    const std::size_t end = pattern.find('}', i);
    if (end == std::string::npos) refuse(pattern, "a brace is not closed");
    const std::string field = pattern.substr(i + 1, end - i - 1);
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::string name = field.substr(0, colon);
    const std::string format = colon < field.size() ? field.substr(colon + 1) : "";
    const auto found = metrics.find(name);
    const double value = found == metrics.end() ? std::nan("") : found->second;
    text += (insert_names ? name + "=" : "") + number_text(pattern, name, value, format);
    i = end;
  }
  if (text.empty() || text.find_first_of(std::string("/\\\0", 3)) != std::string::npos ||
      text.starts_with('.'))
    refuse(pattern, "expected the name of a folder, got '" + text + "'");
  return text;
}

}  // namespace trellis::checkpoint
