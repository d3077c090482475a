#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/report/run_report.h"
#include "analysis/report/text_table.h"
#include "base/activity.h"
#include "base/error.h"
#include "base/escape.h"
#include "cli/checkpoint_parts.h"
#include "cli/checkpoint_source.h"
#include "cli/number_range.h"
#include "trainer/checkpoint/conversion/compare.h"

namespace trellis::cli {
namespace {

using analysis::TextTable;
using checkpoint::Comparison;
using checkpoint::TensorDifference;
using checkpoint::TensorEntry;
using nlohmann::json;
using Align = TextTable::Align;

struct DiffOptions {
  std::string a, b, config_file;
  checkpoint::CompareOptions compare;
  std::int64_t top = 20;
  bool json = false;
};

json json_of(const TensorEntry& entry) {
  return {{"dtype", checkpoint::name(entry.dtype)}, {"shape", entry.shape}};
}

/// JSON has no infinity.
json json_of(double number) { return std::isfinite(number) ? json(number) : json("inf"); }

json json_of(const DiffOptions& options, const Comparison& result) {
  using Kind = TensorDifference::Kind;
  json rows = json::array();
  for (const TensorDifference& each : result.differences) {
    json row{{"key", each.key}, {"difference", checkpoint::name(each.kind)}};
    if (each.kind != Kind::kOnlyInB) row["a"] = json_of(each.a);
    if (each.kind != Kind::kOnlyInA) row["b"] = json_of(each.b);
    if (each.kind == Kind::kValues || each.kind == Kind::kDType) {
      row["elements"] = each.elements;
      row["max_abs"] = json_of(each.max_abs);
      row["max_rel"] = json_of(each.max_rel);
      row["l2"] = json_of(each.l2);
    }
    rows.push_back(std::move(row));
  }
  return {{"schema", "trellis.checkpoint_diff/1"},
          {"a", options.a},
          {"b", options.b},
          {"tolerance", options.compare.tolerance},
          {"tensors", result.tensors},
          {"bytes", result.bytes},
          {"padded", result.padded},
          {"different", result.differences.size()},
          {"differences", rows}};
}

std::string text_of(const TensorEntry& entry) {
  return fmt::format("{} {}", checkpoint::name(entry.dtype), checkpoint::text_of(entry.shape));
}

void add_row(TextTable& table, const TensorDifference& each) {
  using Kind = TensorDifference::Kind;
  const bool has_values = each.kind == Kind::kValues || each.kind == Kind::kDType;
  table.add({terminal_line(each.key), checkpoint::name(each.kind),
             each.kind == Kind::kOnlyInB ? "-" : text_of(each.a),
             each.kind == Kind::kOnlyInA ? "-" : text_of(each.b),
             has_values ? std::to_string(each.elements) : "-",
             has_values ? analysis::significant(each.max_abs) : "-",
             has_values ? analysis::significant(each.max_rel) : "-",
             has_values ? analysis::significant(each.l2) : "-"});
}

/// What only one has comes first, then what differs most.
std::vector<const TensorDifference*> ranked(const Comparison& result) {
  std::vector<const TensorDifference*> rows;
  for (const TensorDifference& each : result.differences) rows.push_back(&each);
  const auto weight = [](const TensorDifference* each) {
    using Kind = TensorDifference::Kind;
    const bool has_values = each->kind == Kind::kValues || each->kind == Kind::kDType;
    return has_values ? each->l2 : INFINITY;
  };
  std::ranges::stable_sort(rows, std::greater<>(), weight);
  return rows;
}

void print(const DiffOptions& options, const Comparison& result) {
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
    if (rows++ == options.top) break;
    add_row(table, *each);
  }
  if (!table.empty()) std::cout << table.text();
  const auto different = static_cast<std::int64_t>(result.differences.size());
  if (different > options.top)
    std::cout << fmt::format("… {} more (--top)\n", different - options.top);
  if (result.padded > 0)
    std::cout << fmt::format("{} tables of vocabularies of different sizes: rows of both count\n",
                             result.padded);
  std::cout << fmt::format("{} tensors, {} compared: {} differ\n", result.tensors,
                           analysis::human_bytes(result.bytes), different);
}

int diff(const DiffOptions& options) {
  Activity activity("opening the checkpoints");
  CheckpointReader reader(options.config_file);
  const auto a = reader.open(options.a);
  const auto b = a ? reader.open(options.b) : nullptr;
  if (!b) return reader.exit_code();
  reader.check_config_is_used();
  activity.now("comparing tensors");
  const Comparison result =
      checkpoint::compare(*a, *b, options.compare,
                          [&](std::int64_t done, std::int64_t of) { activity.count(done, of); });
  if (options.json) {
    std::cout << json_of(options, result).dump(1) << "\n";
  } else {
    print(options, result);
  }
  return static_cast<int>(result.differences.empty() ? ExitCode::kOk : ExitCode::kParity);
}

}  // namespace

void add_checkpoint_diff(CLI::App& checkpoint, int& exit_code) {
  CLI::App* part = checkpoint.add_subcommand(
      "diff", "compares every tensor of two checkpoints, of whatever formats and layouts");
  auto options = std::make_shared<DiffOptions>();
  part->add_option("A", options->a, "a local folder or file, or s3://bucket/prefix")->required();
  part->add_option("B", options->b, "another one")->required();
  part->add_option("--tolerance", options->compare.tolerance,
                   "elements are equal when |a - b| <= TOLERANCE * (1 + |b|)")
      ->capture_default_str()
      ->check(at_least(0.0));
  part->add_option("--config", options->config_file,
                   "NxDT YAML of the training that saved a folder of NxD, NxDT or NNM: its weights "
                   "are compared; none: the tensors of its files, by rank")
      ->type_name("YAML");
  part->add_flag("--weights-only", options->compare.weights_only, "leave optimizer states out");
  part->add_flag("--ignore-dtypes", options->compare.ignore_dtypes,
                 "compare the values of different types, not the types");
  part->add_option("--top", options->top,
                   "rows of the table at most, the largest L2 norms of a - b")
      ->capture_default_str()
      ->check(at_least(1));
  part->add_flag("--json", options->json, "one JSON document, all rows");
  part->footer(
      "Examples:\n  trellis checkpoint diff run/checkpoints/a.ckpt run/checkpoints/b.ckpt\n"
      "  trellis checkpoint diff a.ckpt exported/ --weights-only --ignore-dtypes --tolerance 4e-3\n"
      "Exit codes: 0 all tensors are equal, 5 some differ, 2 a checkpoint cannot be read.");
  part->callback([options, &exit_code] { exit_code = diff(*options); });
}

}  // namespace trellis::cli
