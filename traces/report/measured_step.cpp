#include "traces/report/measured_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "base/number_text.h"
#include "traces/report/json_form.h"
#include "traces/report/step_view.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::array<Key, 10> kMeasured{{{"device", Form::kText},
                                         {"provider", Form::kText},
                                         {"backend", Form::kText},
                                         {"clock", Form::kText},
                                         {"steps", Form::kInteger},
                                         {"step_time_s", Form::kNumber},
                                         {"fastest_step_s", Form::kNumber},
                                         {"slowest_step_s", Form::kNumber},
                                         {"phases", Form::kMap},
                                         {"ranks", Form::kList}}};
constexpr std::array<Key, 4> kRank{{{"rank", Form::kInteger},
                                    {"device", Form::kText},
                                    {"step_time_s", Form::kNumber},
                                    {"phases", Form::kMap}}};
constexpr std::array<Key, 2> kMemory{
    {{"peak_allocated_bytes", Form::kInteger}, {"peak_reserved_bytes", Form::kInteger}}};
constexpr std::size_t kMostListed = 16;  ///< ranks

std::int64_t picoseconds(double seconds) { return picoseconds_of(seconds * 1e6); }

std::vector<std::string> phase_names(const std::vector<const json*>& all) {
  std::set<std::string> there;
  for (const json* phases : all) {
    for (const auto& [name, seconds] : phases->items()) there.insert(name);
  }
  return phases_in_order(there);
}

void check_phases(const json& phases, const std::string& where, Problems& problems) {
  for (const auto& [name, seconds] : phases.items())
    (void)check_value(seconds, Form::kNumber, where + "." + name, problems);
}

void check_rank(const json& row, const std::string& where, Problems& problems) {
  if (!check_form(row, kRank, where, problems)) return;
  check_phases(row.at("phases"), where + ".phases", problems);
  if (row.contains("memory")) check_form(row.at("memory"), kMemory, where + ".memory", problems);
}

std::string memory_cell(const json& row) {
  return row.contains("memory") ? human_bytes(row.at("memory").at("peak_allocated_bytes")) : "-";
}

std::string ranks_table(const json& rows) {
  std::vector<const json*> all;
  for (const json& row : rows) all.push_back(&row.at("phases"));
  const std::vector<std::string> names = phase_names(all);
  std::vector<TextTable::Column> columns{{"rank"}, {"device", Align::kLeft}};
  for (const std::string& name : names) columns.push_back({name});
  columns.push_back({"step"});
  columns.push_back({"peak memory"});
  TextTable table(columns);
  for (std::size_t i = 0; i < std::min(rows.size(), kMostListed); ++i) {
    const json& row = rows[i];
    std::vector<std::string> cells{row.at("rank").dump(), row.at("device").get<std::string>()};
    for (const std::string& name : names)
      cells.push_back(significant(1e3 * row.at("phases").value(name, 0.0)));
    cells.push_back(significant(1e3 * row.at("step_time_s").get<double>()));
    cells.push_back(memory_cell(row));
    table.add(std::move(cells));
  }
  return table.text() + (rows.size() > kMostListed
                             ? fmt::format("  and {} more ranks\n", rows.size() - kMostListed)
                             : "");
}

std::vector<NamedTime> phases_of_measured(const json& measured) {
  std::vector<NamedTime> phases;
  for (const std::string& name : phase_names({&measured.at("phases")}))
    phases.push_back({name, picoseconds(measured.at("phases").at(name).get<double>())});
  return phases;
}

std::vector<NamedTime> phases_of_simulated(const StepView& view) {
  std::vector<NamedTime> phases;
  for (const AttributedTime& row : view.rows) {
    const std::string name = row.phase.empty() ? "other" : row.phase;
    auto phase = std::find_if(phases.begin(), phases.end(),
                              [&](const NamedTime& p) { return p.name == name; });
    if (phase == phases.end()) phase = phases.insert(phase, {name, 0});
    phase->ps += row.ps;
  }
  return phases;
}

void take_memory(TimedStep& step, const json& row, const char* peak) {
  const std::int64_t bytes = row.at(peak);
  if (step.peak_bytes && bytes <= *step.peak_bytes) return;
  step.peak_bytes = bytes;
  if (row.contains("capacity_bytes")) step.capacity_bytes = row.at("capacity_bytes");
}

std::int64_t stage_of(const json& report, std::int64_t rank) {
  return rank * report.at("pipeline_model_parallel_size").get<std::int64_t>() /
         report.at("world_size").get<std::int64_t>();
}

/// The document itself, which is of the slowest rank, or the row of the slowest of a stage.
const json& slowest_of(const json& report, std::optional<std::int64_t> stage) {
  const json* slowest = &report.at("measured");
  if (!stage) return *slowest;
  bool found = false;
  for (const json& row : report.at("measured").at("ranks")) {
    if (stage_of(report, row.at("rank")) != *stage) continue;
    if (found && row.at("step_time_s") <= slowest->at("step_time_s")) continue;
    slowest = &row;
    found = true;
  }
  return *slowest;
}

TimedStep measured_step(const json& report, std::optional<std::int64_t> stage) {
  const json& measured = report.at("measured");
  const json& slowest = slowest_of(report, stage);
  TimedStep step;
  step.simulated = false;
  step.ps = picoseconds(slowest.at("step_time_s").get<double>());
  step.rank = slowest.contains("rank") ? slowest.at("rank").get<std::int64_t>()
                                       : measured.value("slowest_rank", std::int64_t{0});
  step.phases = phases_of_measured(slowest);
  for (const json& row : measured.at("ranks")) {
    if (row.contains("memory")) take_memory(step, row.at("memory"), "peak_allocated_bytes");
  }
  return step;
}

StepView simulated_view(const json& report, const json& simulated,
                        std::optional<std::int64_t> stage) {
  for (const std::int64_t rank : attributed_ranks(simulated)) {
    if (stage && stage_of(report, rank) == *stage) return view_rank(simulated, rank);
  }
  return view_step(simulated);
}

}  // namespace

void add_measured(json& report, const json& measured) {
  if (measured.is_null() || !measured.contains("step_time_s")) return;
  const double seconds = measured.at("step_time_s");
  report["measured"] = measured;
  report["step_time_ms"] = 1e3 * seconds;
  if (seconds > 0) report["tokens_per_s"] = report.at("tokens_per_step").get<double>() / seconds;
}

void check_measured(const json& measured, const std::string& where, Problems& problems) {
  if (!check_form(measured, kMeasured, where, problems)) return;
  check_phases(measured.at("phases"), where + ".phases", problems);
  if (measured.at("ranks").empty())
    problems.add(where + ".ranks", "expected a row for each rank, got none");
  for (const json& row : measured.at("ranks")) check_rank(row, where + ".ranks", problems);
}

std::string print_measured(const json& report) {
  const json& measured = report.at("measured");
  const auto text = [&](const char* key) { return measured.at(key).get<std::string>(); };
  const auto time = [&](const char* key) {
    return milliseconds_text(picoseconds(measured.at(key).get<double>()));
  };
  const auto warmup = measured.value("warmup_steps", std::int64_t{0});
  return fmt::format(
             "Measured step {}, {} tokens/s (median of {} steps{}, {} to {}), backend {}, by {}\n\n"
             "Where each rank's median step went, ms\n",
             time("step_time_s"), rate_text(report.at("tokens_per_s").get<double>()),
             measured.at("steps").get<std::int64_t>(),
             warmup > 0 ? fmt::format(" after {} to warm up", warmup) : "", time("fastest_step_s"),
             time("slowest_step_s"), text("backend"), text("clock")) +
         ranks_table(measured.at("ranks"));
}

TimedStep timed_step(const json& report, const std::string& where,
                     std::optional<std::int64_t> stage) {
  if (report.contains("measured")) return measured_step(report, stage);
  const StepView view = simulated_view(report, simulated_step(report, where), stage);
  TimedStep step;
  step.ps = view.step_time_ps;
  step.rank = view.rank;
  step.phases = phases_of_simulated(view);
  if (report.contains("memory")) {
    for (const json& row : report.at("memory").at("ranks")) take_memory(step, row, "peak_bytes");
  }
  return step;
}

std::optional<std::int64_t> common_stage(const TimedStep& step, const json& report,
                                         const json& other) {
  const char* const stages = "pipeline_model_parallel_size";
  if (report.at(stages) != other.at(stages)) return std::nullopt;
  return stage_of(report, step.rank);
}

std::vector<std::string> phases_in_order(const std::set<std::string>& there) {
  std::vector<std::string> names{"forward", "backward", "grad_reduce", "optimizer"};
  std::erase_if(names, [&](const std::string& name) { return !there.contains(name); });
  for (const std::string& name : there) {
    if (name != "other" && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  if (there.contains("other")) names.emplace_back("other");
  return names;
}

std::string kind_of(const TimedStep& step) { return step.simulated ? "simulated" : "measured"; }

}  // namespace trellis::analysis
