#include "sim/cluster/collective_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/cluster/comm_profile.h"
#include "sim/cluster/group_rules.h"

namespace trellis::sim {
namespace {

CommShape checked_shape(const CommMachine& machine, const CollectiveRequest& request) {
  const std::string reason = why_illegal(machine.topology(), request.kind, request.cores);
  if (!reason.empty()) throw ConfigError(reason);
  const int members = static_cast<int>(request.cores.size());
  const std::int64_t blocks =
      request.element_bytes *
      static_cast<std::int64_t>(request.kind == CollectiveKind::kAllToAll ? members : 1);
  if (request.element_bytes < 1 || request.size.value < 0 || request.size.value % blocks != 0) {
    throw ConfigError(fmt::format("{} of {} bytes: expected a multiple of {} bytes",
                                  name(request.kind), request.size.value, blocks));
  }
  if (request.kind == CollectiveKind::kSendRecv && members != 2)
    throw ConfigError(fmt::format("send_recv has a sender and a receiver, got {} cores", members));
  CommShape shape{request.kind, request.cores, request.size.value / request.element_bytes,
                  request.element_bytes};
  if (request.kind != CollectiveKind::kSendRecv) std::sort(shape.cores.begin(), shape.cores.end());
  return shape;
}

AlgorithmChoice choice_for(const CommMachine& machine, const CommShape& shape,
                           const CollectiveRequest& request) {
  if (!request.algorithm) return choose_algorithm(shape, machine);
  return choose_algorithm(shape.kind, machine.layout(shape.cores), request.size,
                          machine.selection(), *request.algorithm);
}

/// Who is busy for how long, of links and of all resources.
void add_usage(const CommMachine& machine, const CommProfile& profile, CollectiveTiming& timing) {
  std::map<ResourceId, std::int64_t> bytes;
  for (const CommPhase& phase : profile.phases) {
    for (const auto& load : phase.loads) bytes[load.resource] += load.bytes;
  }
  const auto total = static_cast<double>(timing.time.value);
  for (const auto& [resource, moved] : bytes) {
    const Picoseconds busy = transfer_time(Bytes(moved), machine.rate(resource));
    const double share = static_cast<double>(busy.value) / total;
    if (share > timing.bound_share)
      timing.bound_share = share, timing.bound_by = machine.name(resource);
    if (!machine.is_link(resource)) continue;
    timing.links.push_back({machine.name(resource), busy, Bytes(moved)});
    if (share > timing.busiest_link_share)
      timing.busiest_link_share = share, timing.busiest_link = timing.links.back().name;
  }
  std::sort(timing.links.begin(), timing.links.end(),
            [](const LinkUsage& a, const LinkUsage& b) { return a.name < b.name; });
}

}  // namespace

double bus_factor(CollectiveKind kind, int members) {
  const double others = static_cast<double>(members - 1) / members;
  switch (kind) {
    case CollectiveKind::kAllReduce: return 2 * others;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll: return others;
    default: return 1;
  }
}

CollectiveTiming time_collective(const CommMachine& machine, const CollectiveRequest& request) {
  const CommShape shape = checked_shape(machine, request);
  CollectiveTiming timing;
  timing.algorithm = choice_for(machine, shape, request);
  const CommProfile profile = profile_comm(shape, timing.algorithm, machine);
  timing.time = machine.start();
  for (const CommPhase& phase : profile.phases) timing.time += Picoseconds(phase.alone);
  timing.wire_bytes = Bytes(profile.wire_bytes);
  timing.algorithm_bandwidth =
      BytesPerSecond(static_cast<double>(request.size.value) / to_seconds(timing.time));
  timing.bus_bandwidth =
      timing.algorithm_bandwidth * bus_factor(request.kind, static_cast<int>(request.cores.size()));
  add_usage(machine, profile, timing);
  return timing;
}

CollectiveTiming time_collective(const SystemConfig& system, const CollectiveRequest& request) {
  return time_collective(CommMachine(system), request);
}

}  // namespace trellis::sim
