#include "traces/report/report_summary.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "traces/report/step_view.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

constexpr std::array<std::pair<const char*, const char*>, 12> kFiles{
    {{"report.json", "this report"},
     {"trace.pftrace", "every rank, engine and link of the last step: open it at ui.perfetto.dev"},
     {"trace.txt", "the same as text"},
     {"trace.kineto", "the same as PyTorch's profiler writes it, a file for each simulated rank"},
     {"trace.chakra", "the last step as MLCommons Chakra's execution traces, a file for each rank"},
     {"hparams.yaml", "the resolved configuration"},
     {"metrics.jsonl", "one line per step"},
     {"host.json", "what the run took on the host: time of each step, resident memory"},
     {"portability.json", "operators and types that the hardware does not have"},
     {"memory_timeline.json", "device memory over time"},
     {"cmd-args.log", "the command"},
     {"lightning_logs.txt", "what was printed"}}};

template <typename Name>
std::vector<OperatorTime> sums(const std::vector<AttributedTime>& rows, const Name& name) {
  std::map<std::string, OperatorTime> by_name;
  for (const AttributedTime& row : rows) {
    OperatorTime& sum = by_name[name(row)];
    sum.ps += row.ps;
    sum.count += row.count;
  }
  std::vector<OperatorTime> list;
  for (auto& [key, sum] : by_name) {
    sum.name = key;
    list.push_back(std::move(sum));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const OperatorTime& a, const OperatorTime& b) { return a.ps > b.ps; });
  return list;
}

/// Phases in the order of their first rows.
std::vector<PhaseBottleneck> bottlenecks(const std::vector<AttributedTime>& rows) {
  std::vector<PhaseBottleneck> phases;
  std::map<std::pair<std::string, std::string>, std::int64_t> kinds;
  for (const AttributedTime& row : rows) {
    auto phase = std::find_if(phases.begin(), phases.end(),
                              [&](const PhaseBottleneck& p) { return p.phase == row.phase; });
    if (phase == phases.end())
      phase = phases.insert(phase, PhaseBottleneck{row.phase, 0, "", 0, "", 0});
    phase->ps += row.ps;
    kinds[{row.phase, row.kind}] += row.ps;
    if (row.ps > phase->largest_ps) {
      phase->largest_ps = row.ps;
      phase->largest = row.name();
    }
  }
  for (PhaseBottleneck& phase : phases) {
    for (const auto& [key, ps] : kinds) {
      if (key.first != phase.phase || ps <= phase.kind_ps) continue;
      phase.kind = key.second;
      phase.kind_ps = ps;
    }
  }
  return phases;
}

/// Coverage counts what every rank ran. Where a row represents several ranks an older device counts
/// the row once: then there is no HFU.
bool counts_all_ranks(const json& report, double executed) {
  const json& rows = report.at("simulated").at("breakdown");
  const bool folded = std::any_of(rows.begin(), rows.end(),
                                  [](const json& row) { return row.value("represents", 1) > 1; });
  return !folded || executed >= 0.9 * report.at("model_flops_per_step").get<double>();
}

json times_json(const std::vector<OperatorTime>& times) {
  json list = json::array();
  for (const OperatorTime& t : times)
    list.push_back({{"name", t.name}, {"time_ps", t.ps}, {"count", t.count}});
  return list;
}

}  // namespace

ReportSummary summarize(const ReportFile& run) {
  const json& step = simulated_step(run.report, run.path.string());
  ReportSummary summary;
  summary.step = view_step(step);
  summary.mfu = run.report.at("mfu");
  if (summary.mfu > 1) {
    throw ConfigError(
        fmt::format("{}: an MFU of {:.1f} %: no step does more FLOPs than the cores' peak; "
                    "model_flops_per_step, step_time_ps or mfu_denominator_flops is wrong",
                    run.path.string(), 100 * summary.mfu));
  }
  summary.model_flops = run.report.at("model_flops_per_step");
  summary.denominator_flops = run.report.at("mfu_denominator_flops");
  summary.executed_flops = step.at("coverage").at("lowered_flops").get<double>() +
                           step.at("coverage").at("estimated_flops").get<double>();
  const double seconds = static_cast<double>(summary.step.step_time_ps) * 1e-12;
  if (seconds > 0 && counts_all_ranks(run.report, summary.executed_flops))
    summary.hfu = summary.executed_flops / (seconds * summary.denominator_flops);
  summary.phases = bottlenecks(summary.step.rows);
  summary.operators = sums(summary.step.rows, [](const AttributedTime& row) {
    return (row.op.empty() ? "(none)" : row.op) + " (" + row.kind + ")";
  });
  summary.components = sums(summary.step.rows, [](const AttributedTime& row) {
    return row.component.empty() ? std::string("(none)") : row.component;
  });
  summary.programs_by_phase =
      program_time_by_phase(step, run.report.at("world_size").get<std::int64_t>());
  summary.communication = communication(step);
  for (const auto& [name, what] : kFiles) {
    if (std::filesystem::exists(run.path.parent_path() / name))
      summary.files.emplace_back(name, what);
  }
  return summary;
}

json to_json(const ReportSummary& summary) {
  json parts = json::array(), phases = json::array(), communication = json::array(),
       files = json::array(), programs = json::array();
  for (const NamedTime& part : summary.step.parts) {
    parts.push_back({{"name", part.name},
                     {"time_ps", part.ps},
                     {"share", summary.step.step_time_ps == 0
                                   ? 0.0
                                   : static_cast<double>(part.ps) /
                                         static_cast<double>(summary.step.step_time_ps)}});
  }
  for (const PhaseBottleneck& p : summary.phases) {
    phases.push_back({{"phase", p.phase},
                      {"time_ps", p.ps},
                      {"kind", p.kind},
                      {"kind_ps", p.kind_ps},
                      {"largest", p.largest},
                      {"largest_ps", p.largest_ps}});
  }
  for (const CommunicationTime& c : summary.communication) {
    communication.push_back({{"axis", c.axis},
                             {"count", c.count},
                             {"transfer_ps", c.transfer_ps},
                             {"exposed_ps", c.exposed_ps},
                             {"hidden_ps", c.transfer_ps - c.exposed_ps}});
  }
  for (const NamedTime& p : summary.programs_by_phase)
    programs.push_back({{"phase", p.name}, {"time_ps", p.ps}});
  for (const auto& [name, what] : summary.files) files.push_back(name);
  json document = {{"schema", "trellis.report_summary/1"},
                   {"rank", summary.step.rank},
                   {"step_time_ps", summary.step.step_time_ps},
                   {"parts", std::move(parts)},
                   {"phases", std::move(phases)},
                   {"operators", times_json(summary.operators)},
                   {"components", times_json(summary.components)},
                   {"programs_by_phase", std::move(programs)},
                   {"communication", std::move(communication)},
                   {"mfu", summary.mfu},
                   {"model_flops", summary.model_flops},
                   {"executed_flops", summary.executed_flops},
                   {"denominator_flops_per_s", summary.denominator_flops},
                   {"files", std::move(files)}};
  if (summary.hfu) document["hfu"] = *summary.hfu;
  return document;
}

}  // namespace trellis::analysis
