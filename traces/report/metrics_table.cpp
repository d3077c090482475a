#include "traces/report/metrics_table.h"

#include <optional>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/json/json_text.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Table = trainer::TableRequest;

constexpr const char* kSchemaOfMetrics = "trellis.metrics/1";
constexpr const char* kExpected =
    "metrics.jsonl: one object of numbers a line, with `step`, as train and simulate write it";

struct Line {
  std::string run;
  json scalars;
};

bool is_count(const std::string& name) { return name == "step" || name == "consumed_samples"; }

void check(const json& line, const std::string& where) {
  const bool has_step = line.is_object() && line.contains("step");
  if (!has_step) throw ConfigError(where + ": expected " + kExpected);
  for (const auto& [name, value] : line.items()) {
    const bool fits =
        is_count(name) ? value.is_number_integer() : value.is_number() || value.is_null();
    if (!fits)
      throw ConfigError(fmt::format("{}: {}: expected {}, got {}", where, name,
                                    is_count(name) ? "an integer" : "a number or null",
                                    value.dump()));
  }
}

void read(const std::filesystem::path& run, std::vector<Line>& lines) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(run, error);
  const std::filesystem::path file = folder ? run / "metrics.jsonl" : run;
  std::istringstream text(read_input_file(file));
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    const std::string where = fmt::format("{}:{}", file.string(), ++number);
    if (line.empty()) continue;
    json scalars = parse_json(line, where, kExpected);
    check(scalars, where);
    lines.push_back({run.string(), std::move(scalars)});
  }
}

Table::Cell cell(const Line& line, const std::string& name) {
  const auto found = line.scalars.find(name);
  if (found == line.scalars.end() || found->is_null()) return {};
  if (is_count(name)) return found->get<std::int64_t>();
  return found->get<double>();
}

}  // namespace

Table metrics_table(const std::vector<std::filesystem::path>& runs) {
  std::vector<Line> lines;
  for (const std::filesystem::path& run : runs) read(run, lines);
  std::set<std::string> names;
  for (const Line& line : lines) {
    for (const auto& [name, value] : line.scalars.items())
      if (!is_count(name)) names.insert(name);
  }
  Table table{.schema = kSchemaOfMetrics, .columns = {}, .rows = {}};
  table.columns = {{"run", Table::Type::kText},
                   {"step", Table::Type::kInteger},
                   {"consumed_samples", Table::Type::kInteger}};
  for (const std::string& name : names) table.columns.emplace_back(name, Table::Type::kReal);
  for (const Line& line : lines) {
    std::vector<Table::Cell> row = {line.run};
    for (std::size_t i = 1; i < table.columns.size(); ++i)
      row.push_back(cell(line, table.columns[i].first));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace trellis::analysis
