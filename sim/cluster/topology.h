#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::sim {

using LinkId = std::int32_t;

/// The ends that a link connects. Every link has one direction; where two ends send both ways there
/// are two.
enum class LinkKind : std::uint8_t {
  kOnChip,       ///< core → core of its chip
  kNeuronLink,   ///< chip → neighbour of the torus
  kUltraServer,  ///< chip → equal chip of another instance of its UltraServer
  kSwitchOut,
  kSwitchIn,  ///< chip → its server's switch → chip
  kRackOut,
  kRackIn,  ///< chip → its rack's switch → chip
  kHostOut,
  kHostIn,  ///< chip → PCIe → chip
  kEfaOut,
  kEfaIn,  ///< NIC → network → NIC
  kNetworkOut,
  kNetworkIn,  ///< instance → network → instance; only where the network is oversubscribed
};
inline constexpr std::size_t kNumLinkKinds = 13;

/// A link's ends: cores (kOnChip), chips, NICs (kEfa…) or instances (kNetwork…), all counted
/// through the cluster. A link into or out of a switch, a host or the network has the same end
/// twice.
struct Link {
  LinkKind kind = LinkKind::kOnChip;
  std::uint8_t way = 0;  ///< which of the chip's links of this kind
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// The way of a message: links that it occupies and the sum of their latencies.
struct Route {
  std::vector<LinkId> links;
  std::int64_t latency = 0;  ///< picoseconds
};

/// Where a chip is.
struct ChipPosition {
  int node = 0, row = 0, column = 0;
};

/// All links of a cluster, each one direction, and who uses which. Cores are global logical cores:
/// node, chip, core in order; chips are counted through the nodes.
///   core → core of one chip: a link per ordered pair
///   chip → chip of one instance: torus, columns first, then rows, the shorter way round (ties:
///     upwards) · switch: out of one, into the other
///   instance → instance of one UltraServer: first to the equal chip (torus: a ring over the
///     instances; switches: the rack's switch, or the direct link into the other rack), then inside
///     a link that is down: the way of fewest links around it, of equals the first in the order of
///     east, west, south, north, up, down
///   instance → instance otherwise: PCIe, NIC, the instance's link into the network if that is
///     oversubscribed; the same at the other end
/// Switches and the network's core are non-blocking: only the ports are servers.
class Topology {
 public:
  explicit Topology(const SystemConfig& system);

  [[nodiscard]] Route route(int from_core, int to_core) const;
  /// The two halves of every route between domains: out of this core's, into this core's.
  [[nodiscard]] Route way_out(int core) const;
  [[nodiscard]] Route way_in(int core) const;
  [[nodiscard]] std::size_t link_count() const { return links_.size(); }
  [[nodiscard]] const LinkConfig& link(LinkId id) const {
    return configs_[static_cast<std::size_t>(ends(id).kind)];
  }
  [[nodiscard]] const Link& ends(LinkId id) const { return links_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::string link_name(LinkId id) const;
  /// Where it begins.
  [[nodiscard]] int node_of_link(LinkId id) const;
  /// Throws ConfigError, with the nearest name, when no link has this one.
  [[nodiscard]] LinkId find_link(const std::string& name) const;
  /// Links of a torus between two chips, both ways; empty: they are no neighbours.
  [[nodiscard]] std::vector<LinkId> links_between(int chip, int other) const;
  /// True if messages of this link have another route while the links that are down carry none:
  /// that is so in a torus only.
  [[nodiscard]] bool has_way_around(LinkId id) const;
  /// A chip's PCIe link, which host transfers share with EFA.
  [[nodiscard]] LinkId host_link(int chip, bool to_host) const {
    return host_ + 2 * chip + (to_host ? 0 : 1);
  }

  [[nodiscard]] const std::string& generation() const { return generation_; }
  [[nodiscard]] const InstanceConfig& instance() const { return instance_; }
  [[nodiscard]] int cores() const { return chips() * cores_per_chip_; }
  [[nodiscard]] int chips() const { return nodes_ * instance_.chips; }
  [[nodiscard]] int nodes() const { return nodes_; }
  [[nodiscard]] int cores_per_chip() const { return cores_per_chip_; }
  [[nodiscard]] int chip_of(int core) const { return core / cores_per_chip_; }
  [[nodiscard]] int node_of(int core) const { return node_of_chip(chip_of(core)); }
  [[nodiscard]] int node_of_chip(int chip) const { return chip / instance_.chips; }
  /// The chip's number inside its instance, as neuron-ls prints it.
  [[nodiscard]] int chip_index(int chip) const { return chip % instance_.chips; }
  [[nodiscard]] ChipPosition position(int chip) const;
  /// The UltraServer (or single instance) of a core: beyond it a route needs EFA.
  [[nodiscard]] int domain_of(int core) const {
    return node_of(core) / instance_.ultraserver_nodes;
  }
  /// The chip's NIC, counted through the cluster.
  [[nodiscard]] int nic_of(int chip) const {
    return node_of_chip(chip) * instance_.efa_nics +
           chip_index(chip) * instance_.efa_nics / instance_.chips;
  }

  /// Chips that one NeuronLink or one trip through a switch reaches. Torus: in the order of
  /// neuron-ls (up, left, down, right), then the next and the previous instance of the UltraServer.
  /// Switches: by number.
  [[nodiscard]] std::vector<int> neighbours(int chip) const;
  /// Two Hamiltonian cycles over the chips of an instance (chip_index) that share no wire, for
  /// rings that use all links; each as consecutive neighbours. Square tori of at least 3 x 3; empty
  /// otherwise.
  [[nodiscard]] std::vector<std::vector<int>> hamiltonian_cycles() const;
  /// Host memory that the cluster level uses for the wiring itself.
  [[nodiscard]] std::size_t bytes() const { return links_.capacity() * sizeof(Link); }

 private:
  /// A chip's links to other chips and to switches, in the order of their ids.
  enum Way {
    kEast,
    kWest,
    kSouth,
    kNorth,
    kUp,
    kDown,
    kOut,
    kIn,
    kRackwardOut,
    kRackwardIn,
    kDirect
  };

  [[nodiscard]] int domain_of_node(int node) const { return node / instance_.ultraserver_nodes; }
  /// Instances of the node's UltraServer that take part: all of them, or a lone pair.
  [[nodiscard]] int ring_size() const { return std::min(instance_.ultraserver_nodes, nodes_); }
  [[nodiscard]] bool same_rack(int node, int other) const {
    return node / instance_.rack_nodes == other / instance_.rack_nodes;
  }
  /// The instances of other racks of the UltraServer, in order.
  [[nodiscard]] std::vector<int> beyond_rack(int node) const;
  [[nodiscard]] int chip_at(int node, int row, int column) const {
    return node * instance_.chips + row * instance_.torus_columns + column;
  }
  [[nodiscard]] int neighbour(int chip, Way way) const;
  [[nodiscard]] bool has_way(Way way) const;

  void wire_chips();
  void wire_torus(int chip);
  void wire_switches(int chip);
  void wire_host_and_network();

  [[nodiscard]] LinkId on_chip(int chip, int from, int to) const;
  [[nodiscard]] LinkId chip_link(int chip, int way) const {
    return chip_links_ + chip * chip_ways_ + slot_[static_cast<std::size_t>(way)];
  }
  [[nodiscard]] LinkId efa(int nic, bool out) const { return efa_ + 2 * nic + (out ? 0 : 1); }
  [[nodiscard]] LinkId network(int node, bool out) const {
    return network_ + 2 * node + (out ? 0 : 1);
  }

  void add(Route& route, LinkId id) const;
  /// Steps of one dimension from `at` to `to` on a ring of `size`; returns the chip that is
  /// reached.
  int walk(Route& route, int chip, int at, int to, int size, Way forward, Way backward) const;
  void route_torus(Route& route, int from_chip, int to_chip) const;
  /// The links of the shortest way over those that are up; nothing when there is none.
  [[nodiscard]] std::vector<LinkId> way_around(int from_chip, int to_chip) const;
  void route_switches(Route& route, int from_chip, int to_chip) const;
  void leave(Route& route, int chip) const;
  void enter(Route& route, int chip) const;

  std::string generation_;
  InstanceConfig instance_;
  int nodes_;
  int cores_per_chip_;
  bool oversubscribed_;
  std::set<LinkId> down_;
  std::array<LinkConfig, kNumLinkKinds> configs_;
  std::vector<Link> links_;
  // Where the ids of each block start; chip links lie chip by chip, those that exist in the order
  // of Way.
  LinkId chip_links_ = 0, host_ = 0, efa_ = 0, network_ = 0;
  std::vector<int> slot_;  ///< Way → place among the chip's links, -1: the fabric has none
  int chip_ways_ = 0;
};

}  // namespace trellis::sim
