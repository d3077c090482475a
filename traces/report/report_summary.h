#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/report/report_file.h"
#include "traces/report/step_view.h"

/// Summary of a run report: shares, rates, bottlenecks. Schema trellis.report_summary/1.
namespace trellis::analysis {

/// The bottleneck of a phase of the rank: the kind of time that it spends most on, and the row that
/// is largest.
struct PhaseBottleneck {
  std::string phase;
  std::int64_t ps = 0;
  std::string kind;  ///< of the largest sum over the phase
  std::int64_t kind_ps = 0;
  std::string largest;  ///< name of the largest row
  std::int64_t largest_ps = 0;
};

/// Rows of `attribution` that share a name.
struct OperatorTime {
  std::string name;
  std::int64_t ps = 0, count = 0;
};

struct ReportSummary {
  StepView step;
  double mfu = 0;             ///< model FLOPs / (step × denominator)
  std::optional<double> hfu;  ///< executed FLOPs, recomputation included, in the same way; none:
                              ///< the report does not count all ranks
  double model_flops = 0, executed_flops = 0, denominator_flops = 0;
  std::vector<PhaseBottleneck> phases;  ///< empty without `attribution`, as the next two
  std::vector<OperatorTime> operators, components;  ///< the longest first
  std::vector<NamedTime> programs_by_phase;  ///< mean over the ranks, without waits and launches
  std::vector<CommunicationTime> communication;
  std::vector<std::pair<std::string, std::string>>
      files;  ///< name, what it holds; those that are there
};

/// Throws ConfigError when nothing was simulated, or when MFU exceeds 1: such a report contradicts
/// itself.
[[nodiscard]] ReportSummary summarize(const ReportFile& run);
[[nodiscard]] nlohmann::json to_json(const ReportSummary& summary);

/// The sections that `trellis report` adds below print_run_report().
[[nodiscard]] std::string summary_text(const ReportFile& run, const ReportSummary& summary);
/// Several runs as columns.
[[nodiscard]] std::string columns_text(const std::vector<ReportFile>& runs);

}  // namespace trellis::analysis
