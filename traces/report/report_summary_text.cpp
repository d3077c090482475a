#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/number_text.h"
#include "traces/report/report_summary.h"
#include "traces/report/step_view.h"
#include "traces/report/text_table.h"
#include "traces/report/unused_cores.h"
#include "traces/report/validity.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;
using Align = TextTable::Align;

constexpr std::size_t kTop = 10;

double of(std::int64_t ps) { return static_cast<double>(ps); }

std::string parts_text(const ReportSummary& summary) {
  TextTable table({{"part", Align::kLeft}, {"time"}, {"share"}});
  for (const NamedTime& part : summary.step.parts)
    table.add({part.name, milliseconds_text(part.ps),
               share_text(of(part.ps), of(summary.step.step_time_ps))});
  return fmt::format("\nThe step of rank {} ({})\n", summary.step.rank,
                     summary.step.rows.empty() ? "the busiest one" : "the one that ends last") +
         table.text();
}

std::string communication_text(const ReportSummary& summary) {
  if (summary.communication.empty()) return "";
  TextTable table({{"axis", Align::kLeft},
                   {"communications"},
                   {"transfer"},
                   {"hidden"},
                   {"exposed"},
                   {"hidden share"}});
  for (const CommunicationTime& c : summary.communication) {
    table.add({c.axis, thousands(c.count), milliseconds_text(c.transfer_ps),
               milliseconds_text(c.transfer_ps - c.exposed_ps), milliseconds_text(c.exposed_ps),
               share_text(of(c.transfer_ps - c.exposed_ps), of(c.transfer_ps))});
  }
  return "\nCommunication of that rank, from all participants being there to the end; exposed: the "
         "rank waits meanwhile\n" +
         table.text();
}

std::string phases_text(const ReportSummary& summary) {
  if (summary.phases.empty()) {
    TextTable table({{"phase", Align::kLeft}, {"time of its programs"}});
    for (const NamedTime& phase : summary.programs_by_phase)
      table.add({phase.name, milliseconds_text(phase.ps)});
    return "\nPhases, mean over the ranks, without waits and launches (this report has no "
           "attribution)\n" +
           table.text();
  }
  TextTable table({{"phase", Align::kLeft},
                   {"time"},
                   {"share"},
                   {"bottleneck", Align::kLeft},
                   {"of the phase"},
                   {"largest row", Align::kLeft},
                   {"time"}});
  for (const PhaseBottleneck& p : summary.phases) {
    table.add({p.phase.empty() ? "(none)" : p.phase, milliseconds_text(p.ps),
               share_text(of(p.ps), of(summary.step.step_time_ps)), p.kind,
               share_text(of(p.kind_ps), of(p.ps)), p.largest, milliseconds_text(p.largest_ps)});
  }
  return "\nPhases and what bounds them\n" + table.text();
}

std::string times_text(const std::string& what, const std::vector<OperatorTime>& times,
                       std::int64_t step_ps) {
  if (times.empty()) return "";
  TextTable table({{what, Align::kLeft}, {"time"}, {"share"}, {"count"}});
  for (std::size_t i = 0; i < std::min(times.size(), kTop); ++i) {
    table.add({times[i].name, milliseconds_text(times[i].ps),
               share_text(of(times[i].ps), of(step_ps)), thousands(times[i].count)});
  }
  return fmt::format("\nTop {} of {} {}s\n", std::min(times.size(), kTop), times.size(), what) +
         table.text();
}

std::string utilization_text(const ReportFile& run, const ReportSummary& summary) {
  std::string text = fmt::format(
      "\nMFU {} = {:.4g} model FLOPs / ({} × {:.1f} TFLOPS); model FLOPs: 6 per parameter that a "
      "token is multiplied with and token, and\n"
      "12 · layers · width · keys · tokens for attention, causal: the keys that a token sees, half "
      "the sequence on average; no recomputation\n",
      share_text(summary.mfu, 1), summary.model_flops, milliseconds_text(summary.step.step_time_ps),
      summary.denominator_flops * 1e-12);
  text += summary.hfu
              ? fmt::format(
                    "HFU {} = {:.4g} executed FLOPs / the same: all that the ranks' programs do, "
                    "recomputation and vector operations included\n",
                    share_text(*summary.hfu, 1), summary.executed_flops)
              : std::string("HFU: not known, this report does not count the FLOPs of all ranks\n");
  return text +
         fmt::format("Denominator: {} cores × {:.2f} TFLOPS dense bf16 peak\n",
                     run.report.at("world_size").get<int>(),
                     run.report.at("simulated").at("peak_flops_per_core").get<double>() * 1e-12);
}

const json* fullest(const json& report) {
  if (!report.contains("memory")) return nullptr;
  const json& ranks = report.at("memory").at("ranks");
  return &*std::max_element(ranks.begin(), ranks.end(), [](const json& a, const json& b) {
    return a.at("peak_bytes") < b.at("peak_bytes");
  });
}

std::string memory_text(const json& report) {
  const json* rank = fullest(report);
  if (rank == nullptr) return "";
  TextTable table({{"category", Align::kLeft}, {"bytes"}, {"of the peak"}, {"of the capacity"}});
  const double peak = rank->at("peak_bytes").get<double>(),
               capacity = rank->at("capacity_bytes").get<double>();
  for (const auto& [key, bytes] : rank->at("at_peak").items()) {
    const auto value = bytes.get<std::int64_t>();
    table.add({key.substr(0, key.find("_bytes")), human_bytes(value), share_text(of(value), peak),
               share_text(of(value), capacity)});
  }
  table.add({"peak allocated", human_bytes(static_cast<std::int64_t>(peak)), share_text(peak, peak),
             share_text(peak, capacity)});
  return fmt::format("\nDevice memory of the fullest rank, {}, at its peak in {}\n",
                     rank->at("rank").get<std::int64_t>(),
                     terminal_line(rank->at("peak_phase").get<std::string>())) +
         table.text();
}

std::string links_text(const json& step) {
  std::vector<json> links(step.at("links").begin(), step.at("links").end());
  if (links.empty()) return "";
  std::stable_sort(links.begin(), links.end(), [](const json& a, const json& b) {
    return a.at("busy_us").get<double>() > b.at("busy_us").get<double>();
  });
  TextTable table({{"link", Align::kLeft}, {"busy"}, {"of the step"}, {"bytes"}});
  for (std::size_t i = 0; i < std::min<std::size_t>(links.size(), 5); ++i) {
    const auto ps = picoseconds_of(links[i].at("busy_us").get<double>());
    table.add({links[i].at("name"), milliseconds_text(ps),
               share_text(of(ps), step.at("step_time_ps").get<double>()),
               human_bytes(links[i].at("size_bytes"))});
  }
  return fmt::format("\nBusiest {} of {} links\n", std::min<std::size_t>(links.size(), 5),
                     links.size()) +
         table.text();
}

std::string files_text(const ReportFile& run, const ReportSummary& summary) {
  TextTable table({{"file", Align::kLeft}, {"what it holds", Align::kLeft}});
  for (const auto& [name, what] : summary.files) table.add({name, what});
  return "\nFiles in " + terminal_line(run.path.parent_path().string()) + "\n" + table.text();
}

std::string unused_cell(const json& report) {
  const auto use = core_use(report);
  return use ? fmt::format("{} of {}", use->there - use->used, use->there) : "-";
}

/// The rows of the table of columns: a title and how a run's cell reads.
std::vector<std::string> column_of(const ReportFile& run,
                                   const std::vector<std::string>& part_names) {
  const ReportSummary summary = summarize(run);
  const json& report = run.report;
  const json& step = report.at("simulated");
  const auto number = [&](const char* key) { return report.at(key).get<std::int64_t>(); };
  std::vector<std::string> cells{
      report.at("verb").get<std::string>() + " " + report.at("name").get<std::string>(),
      fmt::format("{} × {}", number("nodes"), report.at("instance").get<std::string>()),
      fmt::format("TP {} × PP {} × DP {}", number("tensor_model_parallel_size"),
                  number("pipeline_model_parallel_size"), number("data_parallel_size")),
      thousands(number("num_microbatches")),
      thousands(number("tokens_per_step")),
      unused_cell(report),
      milliseconds_text(summary.step.step_time_ps),
      range_text(report),
      rate_text(report.at("tokens_per_s").get<double>()),
      share_text(summary.mfu, 1),
      summary.hfu ? share_text(*summary.hfu, 1) : "-"};
  for (const std::string& name : part_names) {
    const auto part = std::find_if(summary.step.parts.begin(), summary.step.parts.end(),
                                   [&](const NamedTime& p) { return p.name == name; });
    cells.push_back(
        part == summary.step.parts.end()
            ? "-"
            : milliseconds_text(part->ps) + " " +
                  fmt::format("{:>5.1f} %", 100 * of(part->ps) / of(summary.step.step_time_ps)));
  }
  const json* rank = fullest(report);
  cells.push_back(rank == nullptr ? "-"
                                  : human_bytes(rank->at("peak_bytes")) + " of " +
                                        human_bytes(rank->at("capacity_bytes")));
  cells.push_back(
      fmt::format("{:.2f} %", 100 * step.at("coverage").at("lowered_flops_share").get<double>()));
  cells.push_back(step.at("evidence"));
  return cells;
}

}  // namespace

std::string summary_text(const ReportFile& run, const ReportSummary& summary) {
  std::string text = parts_text(summary) + communication_text(summary) + phases_text(summary);
  text += times_text("operator", summary.operators, summary.step.step_time_ps) +
          times_text("component", summary.components, summary.step.step_time_ps);
  return text + utilization_text(run, summary) + memory_text(run.report) +
         links_text(run.report.at("simulated")) + files_text(run, summary);
}

std::string columns_text(const std::vector<ReportFile>& runs) {
  std::vector<std::string> part_names;
  for (const ReportFile& run : runs) {
    for (const NamedTime& part : view_step(simulated_step(run.report, run.path.string())).parts) {
      if (std::find(part_names.begin(), part_names.end(), part.name) == part_names.end())
        part_names.push_back(part.name);
    }
  }
  std::vector<std::string> titles{"run",
                                  "machine",
                                  "layout",
                                  "micro-batches",
                                  "tokens per step",
                                  "cores without a rank",
                                  "step",
                                  "its range",
                                  "tokens/s",
                                  "MFU",
                                  "HFU"};
  for (const std::string& name : part_names) titles.push_back("  " + name);
  for (const char* title : {"peak memory", "FLOPs lowered", "evidence"}) titles.emplace_back(title);
  std::vector<TextTable::Column> columns{{"", Align::kLeft}};
  std::vector<std::vector<std::string>> cells;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    columns.push_back({runs[i].path.parent_path().filename().string(), Align::kRight});
    cells.push_back(column_of(runs[i], part_names));
  }
  TextTable table(columns);
  for (std::size_t row = 0; row < titles.size(); ++row) {
    std::vector<std::string> line{titles[row]};
    for (const auto& column : cells) line.push_back(column[row]);
    table.add(std::move(line));
  }
  return table.text();
}

}  // namespace trellis::analysis
