#include "analysis/cost/amounts.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace trellis::analysis {

namespace {

using Unit = std::pair<const char*, double>;

constexpr double kMost = 1e18;  ///< fits an integer; beyond it no one means what is written

/// A number and one of the units; −1 for anything else.
double parse(const std::string& text, std::initializer_list<Unit> units) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return -1;
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size()
                                                                 : unit.find_first_not_of(' '));
  for (const auto& [name, factor] : units) {
    if (unit == name) return value * factor <= kMost ? value * factor : -1;
  }
  return -1;
}

}  // namespace

double parse_duration(const std::string& option, const std::string& text) {
  const double seconds = parse(text, {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}});
  if (seconds >= 0) return seconds;
  throw ConfigError(option + " \"" + text +
                    "\": expected a time with its unit, s, min, h or d: e.g. 90s, 10min, 12h, 30d");
}

double parse_count(const std::string& option, const std::string& text) {
  const double count =
      parse(text, {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}});
  if (count >= 1) return count;
  throw ConfigError(option + " \"" + text +
                    "\": expected a number of at least 1, with K, M, B or T after it if you like: "
                    "e.g. 50000, 300B, 2T");
}

std::string duration_text(double seconds) {
  if (seconds >= 86400) return fmt::format("{:.2f} days", seconds / 86400);
  if (seconds >= 3600) return fmt::format("{:.2f} h", seconds / 3600);
  if (seconds >= 120) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} s", seconds);
}

}  // namespace trellis::analysis
