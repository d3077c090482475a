#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

/// Tables for people and for Markdown, and the texts of the numbers in them.
namespace trellis::analysis {

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as there are columns.
  void add(std::vector<std::string> cells);
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  /// Columns as wide as their widest cell, two spaces between them and in front of each line.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A document whose texts and keys can be in a line for people (base/escape.h). Those of a
/// report come from files that anybody wrote.
[[nodiscard]] nlohmann::json one_line_texts(const nlohmann::json& document);

/// A number for people: as many significant digits, without exponent; 12345.6 → "12346", 0.083372 →
/// "0.08337", 0 → "0". All digits are in JSON only.
[[nodiscard]] std::string significant(double value, int digits = 4);
/// 4711433741 → "4.711 ms"; seconds from 10 s, nanoseconds below a microsecond, picoseconds below a
/// nanosecond. With a sign when it is a change.
[[nodiscard]] std::string milliseconds_text(std::int64_t ps);
[[nodiscard]] std::string change_in_ms(std::int64_t ps);
/// "+1.50 MiB", "0 B".
[[nodiscard]] std::string change_in_bytes(std::int64_t bytes);
/// "+3.20 %"; "new" from nothing, "gone" to nothing, "=" when nothing changed.
[[nodiscard]] std::string change_in_percent(std::int64_t before, std::int64_t after);
/// "12.3 %"; of nothing: "-".
[[nodiscard]] std::string share_text(double part, double whole);

}  // namespace trellis::analysis
