#include "traces/report/timed_columns.h"

#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/escape.h"
#include "base/number_text.h"
#include "traces/report/measured_step.h"
#include "traces/report/run_diff.h"
#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

using nlohmann::json;
using Align = TextTable::Align;

std::string machine_text(const json& report) {
  if (report.contains("simulated"))
    return fmt::format("{} × {}", report.at("nodes").get<std::int64_t>(),
                       report.at("instance").get<std::string>());
  return fmt::format("{} × {}", report.at("world_size").get<std::int64_t>(),
                     report.at("measured").at("device").get<std::string>());
}

std::string memory_text(const TimedStep& step) {
  if (!step.peak_bytes) return "-";
  return human_bytes(*step.peak_bytes) +
         (step.capacity_bytes ? " of " + human_bytes(*step.capacity_bytes) : "");
}

std::int64_t time_of(const TimedStep& step, const std::string& phase) {
  for (const NamedTime& each : step.phases) {
    if (each.name == phase) return each.ps;
  }
  return 0;
}

std::string ratio_text(std::int64_t first, std::int64_t second) {
  if (first == 0) return "-";
  return significant(static_cast<double>(second) / static_cast<double>(first), 3) + " ×";
}

/// A row whose cells follow from a number of each run; of two runs also their ratio.
void add_times(TextTable& table, const std::string& title, const std::vector<std::int64_t>& ps,
               bool of_two) {
  std::vector<std::string> cells{title};
  for (const std::int64_t each : ps) cells.push_back(milliseconds_text(each));
  if (of_two) {
    cells.push_back(ratio_text(ps[0], ps[1]));
    cells.push_back(change_in_ms(ps[1] - ps[0]));
  }
  table.add(std::move(cells));
}

/// The settings that make the two runs different work; "": the reports show none.
std::string different_work(const ReportFile& first, const ReportFile& second) {
  std::string keys;
  for (const SettingChange& change : settings_changes(first, second)) {
    if (decides_the_step(change.key)) keys += (keys.empty() ? "" : ", ") + change.key;
  }
  return keys.empty() ? ""
                      : "note: not the same work: " + keys + " differ: trellis diff says how\n";
}

std::string verdict_of_two(const std::vector<ReportFile>& runs, const std::vector<TimedStep>& steps,
                           const std::vector<std::string>& phases) {
  const TimedStep &a = steps[0], &b = steps[1];
  std::string text =
      fmt::format("\nThe {} step {} → the {} step {}: {}\n", kind_of(a), milliseconds_text(a.ps),
                  kind_of(b), milliseconds_text(b.ps), ratio_text(a.ps, b.ps));
  if (a.phases.empty() || b.phases.empty()) return text + different_work(runs[0], runs[1]);
  const std::string* most = nullptr;
  std::int64_t largest = 0;
  for (const std::string& phase : phases) {
    const std::int64_t change = time_of(b, phase) - time_of(a, phase);
    if (std::abs(change) <= std::abs(largest)) continue;
    most = &phase;
    largest = change;
  }
  if (most != nullptr) {
    text +=
        fmt::format("Largest difference: {} {}, {} of the step's\n", *most, change_in_ms(largest),
                    share_text(static_cast<double>(largest), static_cast<double>(b.ps - a.ps)));
  }
  return text + different_work(runs[0], runs[1]);
}

}  // namespace

std::string timed_columns_text(const std::vector<ReportFile>& runs) {
  std::vector<TimedStep> steps;
  std::set<std::string> there;
  std::vector<TextTable::Column> columns{{"", Align::kLeft}};
  for (const ReportFile& run : runs) {
    const auto stage =
        steps.empty() ? std::nullopt : common_stage(steps[0], runs[0].report, run.report);
    steps.push_back(timed_step(run.report, run.path.string(), stage));
    for (const NamedTime& phase : steps.back().phases) there.insert(phase.name);
    columns.push_back({terminal_line(run.path.parent_path().filename().string())});
  }
  const std::vector<std::string> phases = phases_in_order(there);
  const bool of_two = runs.size() == 2;
  if (of_two) {
    columns.push_back({"ratio"});
    columns.push_back({"difference"});
  }
  TextTable table(columns);
  const auto add = [&](const std::string& title, const auto& cell_of) {
    std::vector<std::string> cells{title};
    for (std::size_t i = 0; i < runs.size(); ++i) cells.push_back(cell_of(i));
    cells.resize(columns.size());
    table.add(std::move(cells));
  };
  const auto number = [&](std::size_t i, const char* key) {
    return runs[i].report.at(key).get<std::int64_t>();
  };
  add("how", [&](std::size_t i) { return kind_of(steps[i]); });
  add("machine", [&](std::size_t i) { return machine_text(runs[i].report); });
  add("layout", [&](std::size_t i) {
    return fmt::format("TP {} × PP {} × DP {}", number(i, "tensor_model_parallel_size"),
                       number(i, "pipeline_model_parallel_size"), number(i, "data_parallel_size"));
  });
  add("tokens per step", [&](std::size_t i) { return thousands(number(i, "tokens_per_step")); });
  add("tokens/s",
      [&](std::size_t i) { return rate_text(runs[i].report.at("tokens_per_s").get<double>()); });
  const auto times = [&](const std::string& title, const auto& time) {
    std::vector<std::int64_t> ps;
    for (const TimedStep& step : steps) ps.push_back(time(step));
    add_times(table, title, ps, of_two);
  };
  times("step", [](const TimedStep& step) { return step.ps; });
  for (const std::string& phase : phases)
    times("  " + phase, [&](const TimedStep& step) { return time_of(step, phase); });
  add("peak memory", [&](std::size_t i) { return memory_text(steps[i]); });
  return table.text() + (of_two ? verdict_of_two(runs, steps, phases) : "");
}

}  // namespace trellis::analysis
