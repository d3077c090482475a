#pragma once

#include <charconv>
#include <map>
#include <string>

#include "analysis/accuracy/published_rows.h"
#include "base/error.h"

namespace trellis::analysis {

/// One line of a CSV of measurements, whose problems are reported as file:line:column.
class MeasurementRow {
 public:
  MeasurementRow(std::string where, std::map<std::string, std::string> cells, Problems& problems)
      : where_(std::move(where)), cells_(std::move(cells)), problems_(problems) {}

  [[nodiscard]] std::string text(const std::string& column) const;
  /// A required cell.
  [[nodiscard]] std::string required(const std::string& column) const;
  void problem(const std::string& column, const std::string& what) const;
  [[nodiscard]] const std::string& where() const { return where_; }

  /// A time above 0; 1 after a problem. `unit`: "the seconds of one step".
  [[nodiscard]] double time(const std::string& column, const std::string& unit) const;
  [[nodiscard]] int nodes() const;
  /// "" after a problem.
  [[nodiscard]] std::string instance() const;
  [[nodiscard]] RowUse use() const;
  /// `id`, or "line-N".
  [[nodiscard]] std::string id(std::size_t line) const;

 private:
  std::string where_;
  std::map<std::string, std::string> cells_;
  Problems& problems_;
};

template <typename T>
[[nodiscard]] bool parse_whole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace trellis::analysis
