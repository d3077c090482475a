#include "traces/report/text_table.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/escape.h"
#include "base/number_text.h"

namespace trellis::analysis {

namespace {

constexpr int kMostDecimals = 9;

/// Characters on the screen: UTF-8 without its continuation bytes.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string padded(const std::string& cell, std::size_t to, TextTable::Align align) {
  const std::string space(to - width(cell), ' ');
  return align == TextTable::Align::kLeft ? cell + space : space + cell;
}

}  // namespace

void TextTable::add(std::vector<std::string> cells) {
  TRELLIS_CHECK(cells.size() == columns_.size(), "a table's row has a cell for each column");
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = width(terminal_line(columns_[i].title));
    for (const auto& row : rows_) widest = std::max(widest, width(terminal_line(row[i])));
    widths.push_back(widest);
  }
  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i)
      text += "  " + padded(cell_of(i), widths[i], columns_[i].align);
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  line([&](std::size_t i) { return terminal_line(columns_[i].title); });
  for (const auto& row : rows_) line([&](std::size_t i) { return terminal_line(row[i]); });
  return out;
}

std::string TextTable::markdown() const {
  std::string out = "|", rule = "|";
  for (const Column& column : columns_) {
    out += " " + markdown_text(column.title) + " |";
    rule += column.align == Align::kLeft ? "---|" : "---:|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : rows_) {
    out += "|";
    for (const std::string& cell : row) out += " " + markdown_text(cell) + " |";
    out += "\n";
  }
  return out;
}

nlohmann::json one_line_texts(const nlohmann::json& document) {
  if (document.is_string()) return terminal_line(document.get_ref<const std::string&>());
  if (!document.is_structured()) return document;
  nlohmann::json copy = document.is_array() ? nlohmann::json::array() : nlohmann::json::object();
  if (document.is_array()) {
    for (const nlohmann::json& item : document) copy.push_back(one_line_texts(item));
  } else {
    for (const auto& [key, value] : document.items())
      copy[terminal_line(key)] = one_line_texts(value);
  }
  return copy;
}

std::string significant(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{:.0f}", value);
  const int decimals = digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value))));
  return fmt::format("{:.{}f}", value, std::clamp(decimals, 0, kMostDecimals));
}

std::string milliseconds_text(std::int64_t ps) {
  const double time = static_cast<double>(ps), size = std::abs(time);
  if (size >= 1e13) return significant(time * 1e-12) + " s";
  if (size >= 1e6 || ps == 0) return significant(time * 1e-9) + " ms";
  return size >= 1e3 ? significant(time * 1e-3) + " ns" : fmt::format("{} ps", ps);
}

std::string change_in_ms(std::int64_t ps) { return (ps > 0 ? "+" : "") + milliseconds_text(ps); }

std::string change_in_bytes(std::int64_t bytes) {
  if (bytes == 0) return "0 B";
  return (bytes > 0 ? "+" : "-") + human_bytes(bytes > 0 ? bytes : -bytes);
}

std::string change_in_percent(std::int64_t before, std::int64_t after) {
  if (before == after) return "=";
  if (before == 0) return "new";
  if (after == 0) return "gone";
  return (after > before ? "+" : "") +
         significant(100.0 * static_cast<double>(after - before) / static_cast<double>(before), 3) +
         " %";
}

std::string share_text(double part, double whole) {
  return whole == 0 ? "-" : significant(100 * part / whole, 3) + " %";
}

}  // namespace trellis::analysis
