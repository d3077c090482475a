#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "device/driver/reports/breakdown.h"
#include "device/driver/reports/step_report.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;

struct AxisTime {
  std::int64_t count = 0;
  Picoseconds transfer, exposed;
};

using Interval = std::pair<Picoseconds, Picoseconds>;

/// Sorted, and one where several touch or overlap.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::vector<Interval> all;
  for (const Interval& each : intervals) {
    if (all.empty() || all.back().second < each.first) {
      all.push_back(each);
    } else {
      all.back().second = std::max(all.back().second, each.second);
    }
  }
  return all;
}

Picoseconds length(const std::vector<Interval>& intervals) {
  Picoseconds sum;
  for (const auto& [from, to] : intervals) sum += to - from;
  return sum;
}

/// The common time of two lists that merged() gave.
Picoseconds common(const std::vector<Interval>& one, const std::vector<Interval>& other) {
  Picoseconds sum;
  for (std::size_t i = 0, j = 0; i < one.size() && j < other.size();) {
    const Picoseconds from = std::max(one[i].first, other[j].first),
                      to = std::min(one[i].second, other[j].second);
    if (from < to) sum += to - from;
    one[i].second < other[j].second ? ++i : ++j;
  }
  return sum;
}

/// How long bytes of any communication move, and for how much of it the core computes.
nlohmann::json overlap(const StepTiming& step, std::size_t rank) {
  std::vector<Interval> moves, computes;
  for (std::size_t i = 0; i < step.job.ranks[rank].size(); ++i) {
    const ScheduleItem& item = step.job.ranks[rank][i];
    const sim::ItemTiming& time = step.timing.ranks[rank][i];
    if (item.kind == ScheduleItem::Kind::kSegment) computes.emplace_back(time.start, time.end);
    if (item.kind != ScheduleItem::Kind::kCommStart) continue;
    const sim::CommTiming& comm = step.timing.comms[item.comm];
    moves.emplace_back(comm.ready, comm.end);
  }
  const std::vector<Interval> moving = merged(std::move(moves));
  return {{"moving_ps", length(moving).value},
          {"computing_ps", common(moving, merged(std::move(computes))).value}};
}

}  // namespace

nlohmann::json communication(const StepTiming& step) {
  const std::size_t rank = last_to_end(step.timing);
  std::map<std::string, AxisTime> axes;
  std::set<std::uint32_t> seen;
  for (std::size_t i = 0; i < step.job.ranks[rank].size(); ++i) {
    const ScheduleItem& item = step.job.ranks[rank][i];
    if (item.kind != ScheduleItem::Kind::kCommStart && item.kind != ScheduleItem::Kind::kCommWait)
      continue;
    const sim::CommTiming& comm = step.timing.comms[item.comm];
    AxisTime& axis = axes[step.job.groups[step.job.comms[item.comm].group].axis];
    if (seen.insert(item.comm).second) {
      ++axis.count;
      axis.transfer += comm.end - comm.ready;
    }
    if (item.kind != ScheduleItem::Kind::kCommWait) continue;
    const sim::ItemTiming& wait = step.timing.ranks[rank][i];
    axis.exposed +=
        std::max(Picoseconds(0), std::min(wait.end, comm.end) - std::max(wait.start, comm.ready));
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [name, axis] : axes) {
    rows.push_back({{"axis", name},
                    {"count", axis.count},
                    {"transfer_ps", axis.transfer.value},
                    {"exposed_ps", axis.exposed.value}});
  }
  return {
      {"rank", step.world_rank(rank)}, {"rows", std::move(rows)}, {"overlap", overlap(step, rank)}};
}

}  // namespace trellis::device
