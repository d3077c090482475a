#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "sim/cluster/comm_profile.h"

namespace trellis::sim {

/// Collectives on groups that lie alike, worked out once on one machine, whatever nodes are looked
/// at: profilers of one machine share them. One thread at a time.
class CommTraffic {
 public:
  /// Where the members of a group lie: in the how-manieth of its domains, ascending, and at which
  /// core of it; the first one of the chip where no two members share a chip.
  struct Places {
    std::vector<int> domain, core;
    std::vector<int> domains;  ///< of the cluster, by the group's own number
  };
  /// A collective on such groups.
  struct Entry {
    AlgorithmChoice choice;
    bool is_planned = false;  ///< the others are there: of many members they take long to work out
    PlanTraffic plan;
    /// By domain: of how many the same is asked, itself included, where it is the first of them;
    /// else 0.
    std::vector<std::int64_t> represents;
    std::vector<bool> represents_some;
    std::map<std::vector<bool>, PlanTraffic>
        kept;  ///< by the domains that are kept: what they take part in
  };

  explicit CommTraffic(const CommMachine& machine) : machine_(machine) {}
  [[nodiscard]] Places places_of(const CommShape& shape) const;
  /// The entry of a communication, with the choice of its algorithm.
  Entry& entry(const CommShape& shape, const Places& places);
  /// The same, with its plan.
  Entry& planned(const CommShape& shape, const Places& places);
  /// Forgets everything when it has become much: another job begins.
  void bound();

 private:
  using Key = std::tuple<CollectiveKind, std::int64_t, int, std::vector<int>, std::vector<int>>;
  const GroupLayout& layout_of(const CommShape& shape, const Places& places);
  [[nodiscard]] static std::vector<std::int64_t> classes(const PlanTraffic& plan,
                                                         const Places& places);

  const CommMachine& machine_;
  std::map<Key, Entry> entries_;
  std::map<std::pair<std::vector<int>, std::vector<int>>, GroupLayout> layouts_;
  std::size_t flows_ = 0;  ///< of all plans
};

/// Profiles of many communications on one machine of which some nodes are looked at. Everything
/// that does not depend on where a group lies is computed once for all groups that lie alike. For a
/// collective over many domains, only the domains that are looked at are kept, and one of each kind
/// of the others: domains whose members have the same work are busy for equally long. So a group of
/// 1,024 members costs little more than one of two.
class CommProfiler {
 public:
  CommProfiler(const CommMachine& machine, const std::set<int>& nodes, CommTraffic& traffic);

  [[nodiscard]] AlgorithmChoice choose(const CommShape& shape) {
    return shape.kind == CollectiveKind::kSendRecv
               ? choose_algorithm(shape, machine_)
               : traffic_.entry(shape, traffic_.places_of(shape)).choice;
  }
  /// By what the selection table says.
  [[nodiscard]] CommProfile profile(const CommShape& shape);
  /// profile(shapes.front()) while the others, which are equal to it, go on concurrently with it:
  /// phase by phase its loads and those of the others that have members on the nodes. wire_bytes
  /// are the first one's. REQUIRES: one shape at least.
  [[nodiscard]] CommProfile together(const std::vector<CommShape>& shapes);
  [[nodiscard]] bool is_near(int core) const {
    return nodes_.contains(machine_.topology().node_of(core));
  }

 private:
  const CommMachine& machine_;
  const std::set<int>& nodes_;
  std::set<int> near_domains_;
  CommTraffic& traffic_;
};

}  // namespace trellis::sim
