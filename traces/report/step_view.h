#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trellis::analysis {

struct NamedTime {
  std::string name;
  std::int64_t ps = 0;
};

/// One row of `attribution`: a piece of the step of one rank.
struct AttributedTime {
  std::string phase;      ///< forward, backward, grad_reduce, optimizer, …
  std::string component;  ///< layer path with numbers replaced by *, "" when there is none
  std::string op;         ///< "mm", "all_reduce", …
  std::string kind;  ///< compute, memory, comm_tp, comm_pp, comm_dp, comm_cp, comm_other, bubble,
                     ///< optimizer, data, launch, other
  std::int64_t ps = 0;
  std::int64_t count = 0;
  /// A row that names neither what ran nor where, or that nothing did: no one learns from it.
  [[nodiscard]] bool names_nothing() const {
    return kind == "other" && component.empty() && (op.empty() || op == "idle");
  }
  /// "forward · model.layers.*.mlp · mm (compute)"
  [[nodiscard]] std::string name() const;
};

/// One rank's step, read from a step report.
struct StepView {
  std::int64_t step_time_ps = 0;
  std::int64_t rank = 0;
  std::vector<NamedTime> parts;      ///< of the rank's breakdown; they add up to the step
  std::vector<AttributedTime> rows;  ///< add up to the step; empty in reports without `attribution`
};

/// The rank that `attribution` is of; without it the busiest one: the least bubble and exposed
/// communication, the lowest of equals.
[[nodiscard]] StepView view_step(const nlohmann::json& step_report);
/// A rank of the breakdown; without rows when `attribution` has none of it.
[[nodiscard]] StepView view_rank(const nlohmann::json& step_report, std::int64_t rank);
/// Ranks that `attribution` has rows of, the one of view_step first; none in reports without it.
[[nodiscard]] std::vector<std::int64_t> attributed_ranks(const nlohmann::json& step_report);
/// Picoseconds that the rank of a breakdown's row waited for others.
[[nodiscard]] std::int64_t waits_of(const nlohmann::json& breakdown_row);
/// The row of the rank that waits least. REQUIRES: there is one.
[[nodiscard]] const nlohmann::json& busiest_rank(const nlohmann::json& breakdown);

/// A report's microseconds in picoseconds; damaged ones at an end of what can be subtracted.
[[nodiscard]] std::int64_t picoseconds_of(double microseconds);

/// Time per phase of the programs that all ranks launched, divided by the ranks: no waits, no
/// launches. Older reports have no other times of phases.
[[nodiscard]] std::vector<NamedTime> program_time_by_phase(const nlohmann::json& step_report,
                                                           std::int64_t world_size);

/// Communication of the rank by axis: what the step waited for, and what ran concurrently with
/// work. Empty in reports without `communication`.
struct CommunicationTime {
  std::string axis;  ///< tp, pp, dp, …
  std::int64_t count = 0;
  std::int64_t transfer_ps = 0;  ///< from all participants being there to the end, summed
  std::int64_t exposed_ps = 0;   ///< of it, with the rank waiting
};
[[nodiscard]] std::vector<CommunicationTime> communication(const nlohmann::json& step_report);

/// The part's title for people: "matmul_ps" → "matmul", "exposed_tp_ps" → "TP comm".
[[nodiscard]] std::string part_title(const std::string& key);

/// The device's step report in a run's report. Throws ConfigError when nothing was simulated (a run
/// with
/// --device cpu).
[[nodiscard]] const nlohmann::json& simulated_step(const nlohmann::json& report,
                                                   const std::string& where);

}  // namespace trellis::analysis
