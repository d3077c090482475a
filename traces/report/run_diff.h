#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/report/report_file.h"

/// Changes from one run to another, and their causes: schema trellis.diff/1.
namespace trellis::analysis {

/// One named number in both runs. In which unit, the table knows.
struct DiffRow {
  std::string name;
  std::int64_t before = 0, after = 0;
  std::int64_t count_before = 0,
               count_after = 0;  ///< how often it happened; 0 where nothing is counted
  [[nodiscard]] std::int64_t change() const { return after - before; }
  bool operator==(const DiffRow&) const = default;
};

/// Rows by size of change, the largest first; equal ones by name. Rows that are the same in both
/// runs are kept: sums are over all rows.
struct DiffTable {
  std::string title;
  std::vector<DiffRow> rows;
  [[nodiscard]] std::int64_t change() const;
  [[nodiscard]] bool changed() const;
};

struct SettingChange {
  std::string key, before, after;
  bool operator==(const SettingChange&) const = default;
};

struct RunDiff {
  std::string before, after;                             ///< the reports
  bool simulated_before = true, simulated_after = true;  ///< false: measured by the clock
  std::int64_t step_before_ps = 0, step_after_ps = 0;
  std::int64_t rank_before = 0,
               rank_after =
                   0;  ///< whose step is explained: equal ranks, those of one pipeline stage
  std::optional<std::int64_t> stage;  ///< that stage; none: the runs have other numbers of stages
  bool attributed = false;            ///< both reports have `attribution`
  std::vector<DiffTable>
      step;  ///< picoseconds: by part; attributed: also by kind, phase, component, operator
  DiffTable phases_of_programs;     ///< picoseconds; only when not attributed: mean over the ranks,
                                    ///< without waits and launches
  DiffTable causes;                 ///< picoseconds: the finest rows that there are
  std::int64_t unexplained_ps = 0;  ///< of the change: in rows that name nothing, or in no row
  DiffTable
      memory;  ///< bytes at its peak on the rank that is fullest after, and on its equal before
  std::string memory_place_before, memory_place_after;  ///< "rank 0, backward"
  DiffTable links;                                      ///< picoseconds busy
  DiffTable programs;  ///< launches of each program, by its name and hash
  std::vector<std::string> estimated_before, estimated_after;  ///< operators without a lowering
  double lowered_before = 1, lowered_after = 1;                ///< share of the FLOPs
  std::vector<SettingChange>
      slow;  ///< parts that are slower than their kind: "core:3", factors; "1": not slowed
  std::optional<SettingChange> model;  ///< versions of the model that predicted them
  std::vector<SettingChange>
      hardware;  ///< numbers of the machine; empty between two instances, whose numbers all differ
  std::vector<SettingChange> settings;
  std::vector<std::string> notes;

  [[nodiscard]] std::int64_t step_change_ps() const { return step_after_ps - step_before_ps; }
  /// Share of the change of the step that rows with a name explain; 1 when the step is the same.
  [[nodiscard]] double explained() const;
  /// Nothing differs but places on the host's disk.
  [[nodiscard]] bool equal() const;
};

/// Compares two steps of which one was measured: time, phases and memory. Throws ConfigError when a
/// run was neither simulated nor measured.
[[nodiscard]] RunDiff diff_runs(const ReportFile& before, const ReportFile& after);

[[nodiscard]] nlohmann::json to_json(const RunDiff& diff);
/// `top`: rows of each table at most; what is left out is counted.
[[nodiscard]] std::string diff_text(const RunDiff& diff, int top);
[[nodiscard]] std::string diff_markdown(const RunDiff& diff, int top);
/// The same without the root causes, for a text that has said them.
[[nodiscard]] std::string diff_tables_text(const RunDiff& diff, int top);
[[nodiscard]] std::string diff_tables_markdown(const RunDiff& diff, int top);
/// Causes of the change, the most telling first: slowed parts, numbers of the machine, the machine,
/// settings that decide a step; without any of them other programs. A sentence each; empty for
/// equal runs.
[[nodiscard]] std::vector<std::string> root_causes(const RunDiff& diff);
/// The row of the step that changed most in the direction of the change, in one sentence.
[[nodiscard]] std::string first_cause(const RunDiff& diff);

/// Settings and facts that differ; without hparams.yaml on both sides the reports' facts alone.
[[nodiscard]] std::vector<SettingChange> settings_changes(const ReportFile& before,
                                                          const ReportFile& after);
/// Settings of these sections, and these keys of others, decide what a step is.
[[nodiscard]] bool decides_the_step(const std::string& key);

}  // namespace trellis::analysis
