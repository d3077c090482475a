#pragma once

#include <string>
#include <vector>

namespace trellis::sim {

/// Where the members of a group lie, member by member in the order of their cores. Plain numbers,
/// so that plans need no machine.
struct GroupLayout {
  std::vector<int> node;       ///< ascending
  std::vector<int> chip;       ///< counted through the cluster, ascending
  std::vector<int> hypercube;  ///< of the member's chip: coordinates such that torus neighbours
                               ///< differ in one bit; any order elsewhere
  /// Chips of a node in the order of a ring, each a walk from neighbour to neighbour; several share
  /// no wire. Chips that take no part are left out.
  std::vector<std::vector<int>>
      chip_rings;  ///< by place inside the node; empty: as the members come
  int cores_per_chip = 1;
  int chips_per_node = 1;

  [[nodiscard]] int members() const { return static_cast<int>(node.size()); }
  [[nodiscard]] int nodes() const;
  /// Number of chips on the node. REQUIRES: all members on one node.
  [[nodiscard]] int chips() const;
  /// Members on each node when that is the same everywhere; 0 otherwise.
  [[nodiscard]] int members_per_node() const;
  /// Members on each chip when that is the same everywhere; 0 otherwise.
  [[nodiscard]] int members_per_chip() const;
};

/// Members without a place: one chip each, of one node.
[[nodiscard]] GroupLayout flat_layout(int members);

}  // namespace trellis::sim
