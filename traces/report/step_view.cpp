#include "traces/report/step_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "traces/report/step_parts.h"

namespace trellis::analysis {

namespace {

using nlohmann::json;

/// memory_bound_ps is a share of other_compute_ps; total_ps is their sum.
bool is_part(const std::string& key) {
  return key.ends_with("_ps") && key != "total_ps" && key != "memory_bound_ps";
}

/// Null: there are no rows of this rank.
const json* attribution_of(const json& step_report, std::int64_t rank) {
  if (!step_report.contains("attribution")) return nullptr;
  const json& attribution = step_report.at("attribution");
  if (attribution.at("rank") == rank) return &attribution;
  if (!attribution.contains("other_ranks")) return nullptr;
  const json& others = attribution.at("other_ranks");
  const auto found = std::find_if(others.begin(), others.end(),
                                  [&](const json& other) { return other.at("rank") == rank; });
  return found == others.end() ? nullptr : &*found;
}

/// The known parts in their order, then any other.
std::vector<NamedTime> parts_of(const json& row) {
  std::vector<NamedTime> parts;
  for (const auto& [key, title] : kStepParts)
    parts.push_back({title, row.value(key, std::int64_t{0})});
  for (const auto& [key, value] : row.items()) {
    const bool known = std::any_of(kStepParts.begin(), kStepParts.end(),
                                   [&k = key](const auto& title) { return k == title.first; });
    if (is_part(key) && !known) parts.push_back({part_title(key), value.get<std::int64_t>()});
  }
  return parts;
}

}  // namespace

std::string AttributedTime::name() const {
  std::string text = phase;
  if (!component.empty()) text += " · " + component;
  if (!op.empty()) text += " · " + op;
  return text + " (" + kind + ")";
}

std::string part_title(const std::string& key) {
  for (const auto& [known, title] : kStepParts) {
    if (key == known) return title;
  }
  std::string title = key.substr(0, key.size() - 3);
  std::replace(title.begin(), title.end(), '_', ' ');
  return title;
}

const json& busiest_rank(const json& breakdown) {
  return *std::min_element(breakdown.begin(), breakdown.end(),
                           [](const json& a, const json& b) { return waits_of(a) < waits_of(b); });
}

std::int64_t waits_of(const json& row) {
  std::int64_t sum = 0;
  for (const auto& [key, value] : row.items()) {
    if (key == "bubble_ps" || key.starts_with("exposed_")) sum += value.get<std::int64_t>();
  }
  return sum;
}

StepView view_step(const json& step_report) {
  const bool attributed = step_report.contains("attribution");
  return view_rank(step_report, (attributed ? step_report.at("attribution")
                                            : busiest_rank(step_report.at("breakdown")))
                                    .at("rank")
                                    .get<std::int64_t>());
}

StepView view_rank(const json& step_report, std::int64_t rank) {
  StepView view;
  view.step_time_ps = step_report.at("step_time_ps").get<std::int64_t>();
  view.rank = rank;
  const json& breakdown = step_report.at("breakdown");
  const auto row = std::find_if(breakdown.begin(), breakdown.end(),
                                [&](const json& r) { return r.at("rank") == rank; });
  view.parts = parts_of(row != breakdown.end() ? *row : busiest_rank(breakdown));
  const json* attribution = attribution_of(step_report, rank);
  if (attribution == nullptr) return view;
  for (const json& r : attribution->at("rows"))
    view.rows.push_back({r.at("phase"), r.at("component"), r.at("operator"), r.at("kind"),
                         r.at("time_ps"), r.at("count")});
  return view;
}

std::vector<std::int64_t> attributed_ranks(const json& step_report) {
  std::vector<std::int64_t> ranks;
  if (!step_report.contains("attribution")) return ranks;
  const json& attribution = step_report.at("attribution");
  ranks.push_back(attribution.at("rank"));
  for (const json& other : attribution.value("other_ranks", json::array()))
    ranks.push_back(other.at("rank"));
  return ranks;
}

std::int64_t picoseconds_of(double microseconds) {
  constexpr double kMost = 4e18;
  return static_cast<std::int64_t>(std::llround(std::clamp(microseconds * 1e6, -kMost, kMost)));
}

std::vector<NamedTime> program_time_by_phase(const json& step_report, std::int64_t world_size) {
  // Limit of the sum over all ranks: more than 64 bits of picoseconds for many of them, or in a
  // damaged report.
  constexpr double kMost = 1e30, kMostOfRank = 4e18;
  std::map<std::string, double> sums;
  for (const json& program : step_report.at("programs")) {
    const double all = std::round(program.at("device_time_us").get<double>() * 1e6) *
                       program.at("launches").get<double>();
    sums[program.at("name").get<std::string>()] += std::clamp(all, -kMost, kMost);
  }
  std::vector<NamedTime> phases;
  for (const auto& [name, ps] : sums) {
    const double of_rank = ps / static_cast<double>(std::max<std::int64_t>(world_size, 1));
    phases.push_back(
        {name, static_cast<std::int64_t>(std::clamp(of_rank, -kMostOfRank, kMostOfRank))});
  }
  return phases;
}

std::vector<CommunicationTime> communication(const json& step_report) {
  std::vector<CommunicationTime> all;
  if (!step_report.contains("communication")) return all;
  for (const json& row : step_report.at("communication").at("rows")) {
    all.push_back({row.at("axis"), row.at("count"), row.at("transfer_ps"), row.at("exposed_ps")});
  }
  return all;
}

const nlohmann::json& simulated_step(const nlohmann::json& report, const std::string& where) {
  if (report.contains("simulated")) return report.at("simulated");
  throw ConfigError(
      where + ": nothing was simulated in this run (device " +
      report.at("device").get<std::string>() +
      "): expected a run of `trellis simulate`, or of `trellis train` with --device neuron");
}

}  // namespace trellis::analysis
