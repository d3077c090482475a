#include "analysis/sweep/sweep_output.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/sweep/reproduce.h"
#include "analysis/sweep/table_cells.h"
#include "base/escape.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;

std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string memory_text(std::int64_t bytes) {
  return bytes >= std::int64_t{1} << 30
             ? fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30))
             : fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::map<std::string, std::size_t> counts_of(const SweepResult& result) {
  std::map<std::string, std::size_t> counts = {
      {"ok", 0}, {"oom", 0}, {"illegal", 0}, {"dominated", 0}};
  for (const SweepRow& row : result.rows) ++counts[name(row.status)];
  return counts;
}

/// "most often" first; places in files and numbers differ from row to row, so rules are
/// distinguished by their key.
std::vector<std::pair<std::size_t, std::string>> common_reasons(const SweepResult& result,
                                                                SweepStatus status) {
  std::map<std::string, std::pair<std::size_t, std::string>> by_kind;
  for (const SweepRow& row : result.rows) {
    if (row.status != status) continue;
    std::string kind;
    for (const char c : row.reason) {
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) kind += c;
    }
    auto& [count, example] = by_kind[kind];
    if (count++ == 0) example = row.reason;
  }
  std::vector<std::pair<std::size_t, std::string>> reasons;
  for (const auto& [kind, entry] : by_kind) reasons.push_back(entry);
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return reasons;
}

std::string reasons_text(const SweepResult& result) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (const SweepStatus status : {SweepStatus::kIllegal, SweepStatus::kOom}) {
    const auto reasons = common_reasons(result, status);
    for (std::size_t i = 0; i < std::min(kShown, reasons.size()); ++i)
      text += fmt::format("  {:>7} × {}, e.g. {}\n", reasons[i].first, name(status),
                          terminal_line(reasons[i].second));
    if (reasons.size() > kShown)
      text += fmt::format("          {} more reasons of `{}`: --csv\n", reasons.size() - kShown,
                          name(status));
  }
  return text;
}

std::string share(const SimulatedStep& step) {
  return fmt::format(
      "{} {:.0f} %", step.bottleneck,
      100.0 * static_cast<double>(step.bottleneck_ps) / static_cast<double>(step.step_time_ps));
}

/// "within 1.22 ×"; the layouts of one model share what their predictions get wrong, so that their
/// order is surer than their times.
std::string range_text(const SimulatedStep& step) {
  const std::string text =
      step.range_factor > 0 ? fmt::format("within {:.2f} ×", step.range_factor) : "unknown";
  return step.exploratory ? text + ", exploratory" : text;
}

std::string best_text(const SweepResult& result, int nodes) {
  const std::vector<const SweepRow*> best = ranked(result.rows, nodes);
  if (best.empty()) return "";
  TextTable table({{"#"},
                   {"layout", TextTable::Align::kLeft},
                   {"tokens/s"},
                   {"step"},
                   {"range", TextTable::Align::kLeft},
                   {"to next"},
                   {"MFU"},
                   {"peak memory"},
                   {"bottleneck", TextTable::Align::kLeft},
                   {"bound / step"},
                   {"estimate"},
                   {"Pareto"}});
  const std::size_t shown = std::min(best.size(), result.top == 0 ? std::size_t{10} : result.top);
  for (std::size_t i = 0; i < shown; ++i) {
    const SimulatedStep& s = *best[i]->step;
    const std::string next =
        i + 1 < best.size() ? change_in_percent(s.step_time_ps, best[i + 1]->step->step_time_ps)
                            : "-";
    table.add(
        {std::to_string(i + 1), to_string(best[i]->candidate), grouped(s.tokens_per_s),
         milliseconds_text(s.step_time_ps), range_text(s), next,
         fmt::format("{:.2f} %", 100 * s.mfu), memory_text(s.peak_bytes), share(s),
         fmt::format("{:.2f}",
                     static_cast<double>(best[i]->bound_ps) / static_cast<double>(s.step_time_ps)),
         best[i]->estimate_ps > 0 ? change_in_percent(s.step_time_ps, best[i]->estimate_ps) : "-",
         best[i]->pareto ? "*" : ""});
  }
  return fmt::format("\nBest on {} node{} (evidence: {})\n", nodes, nodes == 1 ? "" : "s",
                     best.front()->step->evidence) +
         table.text();
}

std::vector<const SweepRow*> front_of(const SweepResult& result) {
  std::vector<const SweepRow*> front;
  for (const SweepRow& row : result.rows) {
    if (row.pareto) front.push_back(&row);
  }
  std::stable_sort(front.begin(), front.end(), [](const SweepRow* a, const SweepRow* b) {
    return a->step->step_time_ps < b->step->step_time_ps;
  });
  return front;
}

std::string front_text(const SweepResult& result) {
  const auto front = front_of(result);
  if (front.empty()) return "";
  TextTable table({{"step"}, {"peak memory"}, {"nodes"}, {"layout", TextTable::Align::kLeft}});
  for (const SweepRow* row : front)
    table.add({milliseconds_text(row->step->step_time_ps), memory_text(row->step->peak_bytes),
               std::to_string(row->candidate.nodes), to_string(row->candidate)});
  return fmt::format(
             "\nPareto front of step time, peak memory and nodes, among the {} that were simulated "
             "to the end\n",
             std::count_if(result.rows.begin(), result.rows.end(),
                           [](const SweepRow& row) { return row.step.has_value(); })) +
         table.text();
}

json json_of(const SweepCell& cell) {
  return std::visit(
      [](const auto& value) -> json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>)
          return nullptr;
        else
          return value;
      },
      cell);
}

std::string csv_text(const SweepCell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return csv_cell(*text);
  return std::holds_alternative<std::monostate>(cell) ? "" : json_of(cell).dump();
}

json space_json(const SweepResult& result) {
  const Space& space = result.space.space;
  json only = json::object();
  for (const auto& [axis, values] : space.only) only[axis] = values;
  return {{"config", result.space.request.config},
          {"overrides", result.space.request.overrides},
          {"instance", result.space.request.instance},
          {"nodes", space.nodes},
          {"ranks_per_node", space.ranks_per_node},
          {"logical_cores_per_node", space.cores_per_node},
          {"unused_core_share", result.cores(1).unused_share()},
          {"global_batch_size", space.global_batch_size},
          {"only", only},
          {"candidates", result.space.candidates.size()},
          {"shard", result.shard.text()},
          {"top", result.top}};
}

}  // namespace

std::string sweep_text(const SweepResult& result) {
  const Space& space = result.space.space;
  const auto counts = counts_of(result);
  std::string text = fmt::format(
      "{}: {} candidates on {} {} {}, {} ranks each, global batch {}",
      terminal_line(result.space.request.config),
      grouped(static_cast<double>(result.space.candidates.size())), fmt::join(space.nodes, " or "),
      space.nodes == std::vector<int>{1} ? "node" : "nodes", result.space.request.instance,
      space.ranks_per_node, space.global_batch_size);
  if (result.shard.count > 1)
    text += fmt::format("; shard {}: {} of them", result.shard.text(),
                        grouped(static_cast<double>(result.rows.size())));
  text += fmt::format("\n  ok {}, dominated {}, oom {}, illegal {}\n", counts.at("ok"),
                      counts.at("dominated"), counts.at("oom"), counts.at("illegal")) +
          reasons_text(result);
  if (result.cores(1).unused_share() > 0)
    text += fmt::format("  unused, on each node: {}\n", unused_text(result.cores(1)));
  for (const int nodes : space.nodes) text += best_text(result, nodes);
  text += front_text(result);
  const auto front = front_of(result);
  if (front.empty()) return text + "\nNo candidate has a simulated step.\n";
  if (!result.ranking)
    return text + "\nThe fastest again:\n  " + reproduce(result, *front.front()) + "\n";
  const std::vector<RankedRow> rows = ranked_rows(*result.ranking, result.rows);
  text += ranking_text(*result.ranking, rows, result.top == 0 ? 10 : result.top);
  return text + "\nThe first of these again:\n  " + reproduce(result, *rows.front().row) + "\n";
}

json sweep_json(const SweepResult& result) {
  json rows = json::array();
  for (const SweepRow& row : result.rows) {
    json entry = json::object();
    const std::vector<SweepCell> cells = sweep_cells(result, row);
    for (std::size_t i = 0; i < cells.size(); ++i)
      entry[sweep_columns()[i].name] = json_of(cells[i]);
    entry["layout"] = to_string(row.candidate);
    rows.push_back(std::move(entry));
  }
  json best = json::object(), front = json::array();
  for (const int nodes : result.space.space.nodes) {
    json places = json::array();
    for (const SweepRow* row : ranked(result.rows, nodes)) {
      if (result.top == 0 || places.size() < result.top) places.push_back(row->index);
    }
    best[std::to_string(nodes)] = std::move(places);
  }
  for (const SweepRow* row : front_of(result)) front.push_back(row->index);
  json document = {{"schema", "trellis.sweep/1"},
                   {"space", space_json(result)},
                   {"counts", counts_of(result)},
                   {"best", best},
                   {"pareto", front},
                   {"rows", rows}};
  if (result.ranking)
    document["ranking"] = ranking_json(*result.ranking, ranked_rows(*result.ranking, result.rows));
  return document;
}

std::string sweep_csv(const SweepResult& result) {
  std::string text;
  for (const SweepColumn& column : sweep_columns()) text += (text.empty() ? "" : ",") + column.name;
  text += "\n";
  for (const SweepRow& row : result.rows) {
    std::string line;
    for (const SweepCell& cell : sweep_cells(result, row))
      line += (line.empty() ? "" : ",") + csv_text(cell);
    text += line + "\n";
  }
  return text;
}

std::string sweep_svg(const SweepResult& result) {
  constexpr double kLeft = 90, kTop = 40, kWidth = 760, kHeight = 420;
  double longest = 0, most = 0;
  std::vector<const SweepRow*> rows;
  for (const SweepRow& row : result.rows) {
    if (!row.step) continue;
    rows.push_back(&row);
    longest = std::max(longest, static_cast<double>(row.step->step_time_ps));
    most = std::max(most, static_cast<double>(row.step->peak_bytes));
  }
  const auto x = [&](const SweepRow& row) {
    return kLeft + kWidth * static_cast<double>(row.step->step_time_ps) / std::max(longest, 1.0);
  };
  const auto y = [&](const SweepRow& row) {
    return kTop + kHeight * (1 - static_cast<double>(row.step->peak_bytes) / std::max(most, 1.0));
  };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{2}\" y=\"22\" "
      "font-size=\"13\">Step time and peak memory of {3} layouts; the Pareto front is "
      "marked</text>\n",
      kLeft + kWidth + 40, kTop + kHeight + 60, kLeft, rows.size());
  svg += fmt::format("<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#555555\"/>\n", kLeft,
                     kTop, kTop + kHeight, kLeft + kWidth);
  for (int i = 0; i <= 4; ++i) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       kLeft + kWidth * i / 4, kTop + kHeight + 18,
                       milliseconds_text(static_cast<std::int64_t>(longest * i / 4)));
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                       kTop + kHeight * (1 - i / 4.0) + 4,
                       memory_text(static_cast<std::int64_t>(most * i / 4)));
  }
  for (const SweepRow* row : rows) {
    svg += fmt::format(
        "<g><title>{}, {} nodes: {}, {}</title><circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" "
        "fill=\"{}\" fill-opacity=\"0.8\"/></g>\n",
        xml_text(to_string(row->candidate)), row->candidate.nodes,
        milliseconds_text(row->step->step_time_ps), memory_text(row->step->peak_bytes), x(*row),
        y(*row), row->pareto ? 6 : 4, row->pareto ? "#d04020" : "#4070b0");
  }
  return svg + "</svg>\n";
}

}  // namespace trellis::analysis
