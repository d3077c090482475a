#include "sim/cluster/group_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace trellis::sim {
namespace {

std::string members_problem(const Topology& topology, const std::vector<int>& sorted) {
  if (sorted.empty()) return "the group has no members";
  if (sorted.front() < 0 || sorted.back() >= topology.cores()) {
    const int core = sorted.front() < 0 ? sorted.front() : sorted.back();
    return fmt::format(
        "core {} does not exist: the cluster has {} logical cores, 0 to {}; add nodes or use fewer "
        "ranks",
        core, topology.cores(), topology.cores() - 1);
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    return fmt::format("core {} is a member twice: every rank needs its own core", *twice);
  return "";
}

std::string list(const std::vector<int>& cores) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, cores.size()); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", cores[i]);
  return cores.size() > kShown ? fmt::format("{}, … ({} cores)", text, cores.size()) : text;
}

/// Communication over EFA runs between equal local indices, with equally many ranks on each node.
std::string symmetry_problem(const Topology& topology, const std::vector<int>& sorted) {
  if (topology.domain_of(sorted.front()) == topology.domain_of(sorted.back())) return "";
  const int per_node = topology.cores() / topology.nodes();
  std::map<int, std::vector<int>> local;
  for (const int core : sorted) local[topology.node_of(core)].push_back(core % per_node);
  const auto& [first_node, first] = *local.begin();
  for (const auto& [node, cores] : local) {
    if (cores == first) continue;
    return fmt::format(
        "node {} takes part with its cores {}, node {} with {}: over EFA every node must hold the "
        "same local cores; give all nodes the same part of the group",
        first_node, list(first), node, list(cores));
  }
  return "";
}

/// Adjacent cores on Trn1, which is how tensor parallelism is laid out. Groups with gaps (data,
/// pipeline) are free.
std::string trn1_problem(const Topology& topology, const std::vector<int>& sorted) {
  static constexpr auto kDegrees = std::to_array<std::size_t>({1, 2, 4, 8, 16, 32});
  const std::size_t size = sorted.size();
  const bool adjacent = sorted.back() - sorted.front() + 1 == static_cast<int>(size);
  const bool one_node = topology.node_of(sorted.front()) == topology.node_of(sorted.back());
  if (topology.generation() != "trn1" || !adjacent || !one_node ||
      std::find(kDegrees.begin(), kDegrees.end(), size) != kDegrees.end())
    return "";
  return fmt::format(
      "{} adjacent cores of a Trn1 instance form no group: the documented sizes are 2, 4, 8, 16 "
      "and 32",
      size);
}

}  // namespace

std::string why_illegal(const Topology& topology, CollectiveKind kind,
                        const std::vector<int>& cores) {
  std::vector<int> sorted = cores;
  std::sort(sorted.begin(), sorted.end());
  if (std::string problem = members_problem(topology, sorted);
      !problem.empty() || kind == CollectiveKind::kSendRecv)
    return problem;
  if (std::string problem = symmetry_problem(topology, sorted); !problem.empty()) return problem;
  return kind == CollectiveKind::kBarrier ? "" : trn1_problem(topology, sorted);
}

}  // namespace trellis::sim
