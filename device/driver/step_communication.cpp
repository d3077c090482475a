#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "device/driver/step_timing.h"

namespace trellis::device {

namespace {

using sim::ScheduleItem;

struct AxisTime {
  std::int64_t count = 0;
  Picoseconds transfer, exposed;
};

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
  return {{"rank", step.world_rank(rank)}, {"rows", std::move(rows)}};
}

}  // namespace trellis::device
