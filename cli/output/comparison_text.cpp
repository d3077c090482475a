#include "cli/output/comparison_text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/escape.h"
#include "base/number_text.h"
#include "traces/report/text_table.h"

namespace trellis::cli {
namespace {

using analysis::TextTable;
using checkpoint::Comparison;
using checkpoint::TensorDifference;
using checkpoint::TensorEntry;
using nlohmann::json;
using Align = TextTable::Align;
using Kind = TensorDifference::Kind;

json type_and_shape(const TensorEntry& entry) {
  return {{"dtype", checkpoint::name(entry.dtype)}, {"shape", entry.shape}};
}

/// JSON has no infinity.
json finite_or_text(double number) { return std::isfinite(number) ? json(number) : json("inf"); }

std::string text_of_entry(const TensorEntry& entry) {
  return fmt::format("{} {}", checkpoint::name(entry.dtype), checkpoint::text_of(entry.shape));
}

void add_row(TextTable& table, const TensorDifference& each) {
  const bool has_values = each.kind == Kind::kValues || each.kind == Kind::kDType;
  table.add({terminal_line(each.key), checkpoint::name(each.kind),
             each.kind == Kind::kOnlyInB ? "-" : text_of_entry(each.a),
             each.kind == Kind::kOnlyInA ? "-" : text_of_entry(each.b),
             has_values ? std::to_string(each.elements) : "-",
             has_values ? analysis::significant(each.max_abs) : "-",
             has_values ? analysis::significant(each.max_rel) : "-",
             has_values ? analysis::significant(each.l2) : "-"});
}

/// Tensors that only one side has come first, then those that differ most.
std::vector<const TensorDifference*> ranked(const Comparison& result) {
  std::vector<const TensorDifference*> rows;
  for (const TensorDifference& each : result.differences) rows.push_back(&each);
  const auto weight = [](const TensorDifference* each) {
    const bool has_values = each->kind == Kind::kValues || each->kind == Kind::kDType;
    return has_values ? each->l2 : INFINITY;
  };
  std::ranges::stable_sort(rows, std::greater<>(), weight);
  return rows;
}

}  // namespace

json differences_json(const Comparison& result) {
  json rows = json::array();
  for (const TensorDifference& each : result.differences) {
    json row{{"key", each.key}, {"difference", checkpoint::name(each.kind)}};
    if (each.kind != Kind::kOnlyInB) row["a"] = type_and_shape(each.a);
    if (each.kind != Kind::kOnlyInA) row["b"] = type_and_shape(each.b);
    if (each.kind == Kind::kValues || each.kind == Kind::kDType) {
      row["elements"] = each.elements;
      row["max_abs"] = finite_or_text(each.max_abs);
      row["max_rel"] = finite_or_text(each.max_rel);
      row["l2"] = finite_or_text(each.l2);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string differences_table(const Comparison& result, std::int64_t top) {
  TextTable table({{"tensor", Align::kLeft},
                   {"difference", Align::kLeft},
                   {"A", Align::kLeft},
                   {"B", Align::kLeft},
                   {"elements"},
                   {"max |a-b|"},
                   {"max relative"},
                   {"L2"}});
  std::int64_t rows = 0;
  for (const TensorDifference* each : ranked(result)) {
    if (rows++ == top) break;
    add_row(table, *each);
  }
  return table.empty() ? "" : table.text();
}

std::string read_back_text(const Comparison& result, const std::string& origin) {
  constexpr std::int64_t kMostRows = 20;
  const auto different = static_cast<std::int64_t>(result.differences.size());
  std::string text = differences_table(result, kMostRows);
  if (different > kMostRows)
    text +=
        fmt::format("… {} more (`trellis checkpoint diff` lists them)\n", different - kMostRows);
  const std::string verdict = different == 0
                                  ? "every byte is that of " + origin + " (A)"
                                  : fmt::format("{} are not those of {} (A)", different, origin);
  return text + fmt::format("Read back: {} tensors, {}: {}\n", result.tensors,
                            human_bytes(result.bytes), verdict);
}

}  // namespace trellis::cli
