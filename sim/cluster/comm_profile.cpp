#include "sim/cluster/comm_profile.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/collectives/hierarchical.h"

namespace trellis::sim {
namespace {

// Few enough that a collective of 32 ranks costs microseconds of host time, enough that others share the links fairly.
constexpr int kMaxPhases = 8;

std::int64_t link_time(std::int64_t bytes, const LinkConfig& link) { return transfer_time(Bytes(bytes), link.bandwidth).value; }

class Profiler {
 public:
  Profiler(const std::vector<int>& cores, int element_bytes, const Topology& topology)
      : cores_(cores), element_bytes_(element_bytes), topology_(topology) {}

  CommProfile run(const CommPlan& plan) {
    const int rounds = plan.steps.empty() ? 0 : plan.steps.back().round + 1;
    const int phases = std::min(rounds, kMaxPhases);
    std::size_t next = 0;
    for (int phase = 0; phase < phases; ++phase) {
      const int end_round = static_cast<int>(static_cast<std::int64_t>(rounds) * (phase + 1) / phases);
      profile_.phases.emplace_back();
      phase_bytes_.clear();
      while (next < plan.steps.size() && plan.steps[next].round < end_round) next = add_round(plan.steps, next);
      for (const auto& [link, bytes] : phase_bytes_) {
        profile_.phases.back().loads.push_back({link, bytes});
        profile_.wire_bytes += bytes;
      }
    }
    return std::move(profile_);
  }

 private:
  std::size_t add_round(const std::vector<PlanStep>& steps, std::size_t first) {
    std::size_t at = first;
    std::int64_t latency = 0;
    std::map<LinkId, std::int64_t> round_bytes;
    for (; at < steps.size() && steps[at].round == steps[first].round; ++at) {
      const Route& route = route_of(steps[at].from, steps[at].to);
      latency = std::max(latency, route.latency);
      for (const LinkId link : route.links) round_bytes[link] += steps[at].length * element_bytes_;
    }
    std::int64_t slowest = 0;
    for (const auto& [link, bytes] : round_bytes) {
      slowest = std::max(slowest, link_time(bytes, topology_.link(link)));
      phase_bytes_[link] += bytes;
    }
    profile_.phases.back().alone += latency + slowest;
    return at;
  }

  const Route& route_of(int from, int to) {
    const auto [entry, is_new] = routes_.try_emplace({from, to});
    if (is_new) entry->second = topology_.route(cores_[static_cast<std::size_t>(from)], cores_[static_cast<std::size_t>(to)]);
    return entry->second;
  }

  const std::vector<int>& cores_;
  const std::int64_t element_bytes_;
  const Topology& topology_;
  CommProfile profile_;
  std::map<LinkId, std::int64_t> phase_bytes_;
  std::map<std::pair<int, int>, Route> routes_;
};

bool has_hierarchical_form(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

/// How many of the sorted cores lie on each node, when that is the same everywhere; 0 otherwise.
int members_per_node(const std::vector<int>& cores, const Topology& topology) {
  std::map<int, int> counts;
  for (const int core : cores) ++counts[topology.node_of(core)];
  const int first = counts.begin()->second;
  const bool even = std::all_of(counts.begin(), counts.end(), [first](const auto& entry) { return entry.second == first; });
  return even ? first : 0;
}

}  // namespace

CommProfile profile_plan(const CommPlan& plan, const std::vector<int>& cores, int element_bytes, const Topology& topology) {
  return Profiler(cores, element_bytes, topology).run(plan);
}

CommPlan plan_for(CollectiveKind kind, const std::vector<int>& cores, std::int64_t elements, const Topology& topology) {
  const int members = static_cast<int>(cores.size());
  const int per_node = members_per_node(cores, topology);
  if (has_hierarchical_form(kind) && per_node > 1 && per_node < members) return hierarchical_plan(kind, members / per_node, per_node, elements);
  return ring_plan(kind, members, elements);
}

}  // namespace trellis::sim
