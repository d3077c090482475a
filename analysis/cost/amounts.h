#pragma once

#include <string>

/// Amounts as people write them on a command line. All throw ConfigError that names `option`.
namespace trellis::analysis {

/// "90s", "10 min", "12h", "30d" → seconds, at least 0.
[[nodiscard]] double parse_duration(const std::string& option, const std::string& text);
/// "2T", "300B", "1.5M", "100000" → a number above 0; K, M, B (or G) and T are thousand to
/// trillion.
[[nodiscard]] double parse_count(const std::string& option, const std::string& text);
/// 93600 → "1.08 days"; 5400 → "1.50 h"; 90 → "90.0 s".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace trellis::analysis
