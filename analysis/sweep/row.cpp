#include "analysis/sweep/row.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "traces/report/text_table.h"

namespace trellis::analysis {
namespace {

constexpr std::array<const char*, 5> kNames = {"open", "ok", "oom", "illegal", "dominated"};

/// Less of something, more of nothing.
bool beats(const SweepRow& a, const SweepRow& b) {
  const std::array<std::int64_t, 3> x = {a.step->step_time_ps, a.step->peak_bytes,
                                         a.candidate.nodes},
                                    y = {b.step->step_time_ps, b.step->peak_bytes,
                                         b.candidate.nodes};
  return x != y && x[0] <= y[0] && x[1] <= y[1] && x[2] <= y[2];
}

void dominate_simulated(std::vector<SweepRow>& rows, int nodes, std::size_t top) {
  const std::vector<const SweepRow*> best = ranked(rows, nodes);
  for (std::size_t i = top; top > 0 && i < best.size(); ++i) {
    const auto better = std::find_if(
        best.begin(), best.begin() + static_cast<std::ptrdiff_t>(i), [&](const SweepRow* other) {
          return other->step->step_time_ps < best[i]->step->step_time_ps &&
                 other->step->peak_bytes < best[i]->step->peak_bytes;
        });
    if (better == best.begin() + static_cast<std::ptrdiff_t>(i)) continue;
    SweepRow& row = rows[static_cast<std::size_t>(best[i] - rows.data())];
    row.status = SweepStatus::kDominated;
    row.reason = fmt::format("simulated {}, {} bytes: {} is faster and takes less memory",
                             milliseconds_text(row.step->step_time_ps), row.step->peak_bytes,
                             to_string((*better)->candidate));
  }
}

void mark_pareto(std::vector<SweepRow>& rows) {
  std::vector<SweepRow*> ok;
  for (SweepRow& row : rows) {
    row.pareto = false;
    if (row.status == SweepStatus::kOk) ok.push_back(&row);
  }
  for (SweepRow* row : ok) {
    row->pareto = std::none_of(ok.begin(), ok.end(),
                               [row](const SweepRow* other) { return beats(*other, *row); });
  }
}

}  // namespace

std::string name(SweepStatus status) { return kNames[static_cast<std::size_t>(status)]; }

bool is_status(const std::string& text) {
  return text != kNames[0] && std::find(kNames.begin(), kNames.end(), text) != kNames.end();
}

std::vector<const SweepRow*> ranked(const std::vector<SweepRow>& rows, int nodes) {
  std::vector<const SweepRow*> simulated;
  for (const SweepRow& row : rows) {
    if (row.step && row.candidate.nodes == nodes) simulated.push_back(&row);
  }
  std::stable_sort(simulated.begin(), simulated.end(), [](const SweepRow* a, const SweepRow* b) {
    return a->step->step_time_ps < b->step->step_time_ps;
  });
  return simulated;
}

std::optional<std::int64_t> time_to_beat(const std::vector<SweepRow>& rows, int nodes,
                                         std::size_t top) {
  const std::vector<const SweepRow*> best = ranked(rows, nodes);
  if (top == 0 || best.size() < top) return std::nullopt;
  return best[top - 1]->step->step_time_ps;
}

std::size_t settle(std::vector<SweepRow>& rows, std::size_t top) {
  std::set<int> counts;
  for (const SweepRow& row : rows) counts.insert(row.candidate.nodes);
  for (const int nodes : counts) {
    const auto limit = time_to_beat(rows, nodes, top);
    for (SweepRow& row : rows) {
      const bool decided = !row.simulated && row.status != SweepStatus::kOpen;
      if (!limit || decided || row.candidate.nodes != nodes || row.bound_ps <= *limit) continue;
      row.status = SweepStatus::kDominated;
      row.reason = fmt::format("takes {} at least; number {} takes {}",
                               milliseconds_text(row.bound_ps), top, milliseconds_text(*limit));
      row.step.reset();
    }
    dominate_simulated(rows, nodes, top);
  }
  mark_pareto(rows);
  return static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), [](const SweepRow& row) {
    return row.status == SweepStatus::kOpen;
  }));
}

nlohmann::json result_json(const SweepRow& row) {
  nlohmann::json result = {{"index", row.index},
                           {"nodes", row.candidate.nodes},
                           {"layout", to_string(row.candidate)},
                           {"status", name(row.status)},
                           {"reason", row.reason}};
  if (!row.step) return result;
  const SimulatedStep& s = *row.step;
  result["step"] = {{"step_time_ps", s.step_time_ps},
                    {"tokens_per_s", s.tokens_per_s},
                    {"mfu", s.mfu},
                    {"peak_bytes", s.peak_bytes},
                    {"bottleneck", s.bottleneck},
                    {"bottleneck_ps", s.bottleneck_ps},
                    {"evidence", s.evidence},
                    {"range_factor", s.range_factor},
                    {"exploratory", s.exploratory}};
  return result;
}

void apply_result(const nlohmann::json& result, SweepRow& row) {
  const auto status =
      std::find(kNames.begin(), kNames.end(), result.at("status").get<std::string>());
  row.status = static_cast<SweepStatus>(status - kNames.begin());
  row.reason = result.at("reason").get<std::string>();
  row.simulated = true;
  row.step.reset();
  if (!result.contains("step")) return;
  const nlohmann::json& s = result.at("step");
  row.step = SimulatedStep{
      s.at("step_time_ps"), s.at("tokens_per_s"),         s.at("mfu"),
      s.at("peak_bytes"),   s.at("bottleneck"),           s.at("bottleneck_ps"),
      s.at("evidence"),     s.value("range_factor", 0.0), s.value("exploratory", true)};
}

}  // namespace trellis::analysis
