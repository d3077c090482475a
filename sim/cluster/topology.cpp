#include "sim/cluster/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "base/nearest.h"

namespace trellis::sim {
namespace {

std::size_t index(LinkKind kind) { return static_cast<std::size_t>(kind); }

/// Latencies count where a message enters a link, a switch or the network; EFA's was measured from
/// memory to memory, so PCIe and the way out of the network add nothing.
std::array<LinkConfig, kNumLinkKinds> link_configs(const SystemConfig& system) {
  const InstanceConfig& c = system.instance;
  std::array<LinkConfig, kNumLinkKinds> all;
  all[index(LinkKind::kOnChip)] = c.on_chip;
  all[index(LinkKind::kNeuronLink)] = all[index(LinkKind::kSwitchOut)] = c.neuron_link;
  all[index(LinkKind::kUltraServer)] = c.ultraserver_link;
  all[index(LinkKind::kSwitchIn)] = {c.neuron_link.bandwidth, c.switch_latency};
  all[index(LinkKind::kRackOut)] = c.rack_link;
  all[index(LinkKind::kRackIn)] = {c.rack_link.bandwidth, c.switch_latency};
  all[index(LinkKind::kHostOut)] = all[index(LinkKind::kHostIn)] = {system.chip.host_dma_rate, {}};
  all[index(LinkKind::kEfaOut)] = c.efa;
  all[index(LinkKind::kEfaIn)] = {c.efa.bandwidth, {}};
  all[index(LinkKind::kNetworkOut)] = all[index(LinkKind::kNetworkIn)] = {
      c.efa.bandwidth * (c.efa_nics / system.network.oversubscription), {}};
  return all;
}

}  // namespace

Topology::Topology(const SystemConfig& system)
    : generation_(system.chip.generation),
      instance_(system.instance),
      nodes_(system.nodes),
      cores_per_chip_(system.logical_cores_per_chip()),
      oversubscribed_(system.network.oversubscription > 1),
      down_(system.slow.down),
      configs_(link_configs(system)) {
  for (int chip = 0; chip < chips(); ++chip) {
    for (int from = 0; from < cores_per_chip_; ++from) {
      for (int to = 0; to < cores_per_chip_; ++to) {
        if (from != to)
          links_.push_back(
              {LinkKind::kOnChip, 0, chip * cores_per_chip_ + from, chip * cores_per_chip_ + to});
      }
    }
  }
  wire_chips();
  wire_host_and_network();
}

// ── wiring ──

bool Topology::has_way(Way way) const {
  const bool torus = instance_.fabric == Fabric::kTorus;
  switch (way) {
    case kEast: return torus && instance_.torus_columns > 1;
    case kWest: return torus && instance_.torus_columns > 2;
    case kSouth: return torus && instance_.torus_rows > 1;
    case kNorth: return torus && instance_.torus_rows > 2;
    case kUp: return torus && ring_size() > 1;
    case kDown: return torus && ring_size() > 2;
    case kOut:
    case kIn: return !torus && instance_.chips > 1;
    case kRackwardOut:
    case kRackwardIn: return !torus && std::min(instance_.rack_nodes, nodes_) > 1;
    case kDirect: return !torus && !beyond_rack(0).empty();
  }
  return false;
}

void Topology::wire_chips() {
  chip_links_ = static_cast<LinkId>(links_.size());
  for (int way = kEast; way <= kDirect; ++way)
    slot_.push_back(has_way(static_cast<Way>(way)) ? chip_ways_++ : -1);
  // kDirect is the first of as many links as there are instances beyond the rack.
  if (has_way(kDirect)) chip_ways_ += static_cast<int>(beyond_rack(0).size()) - 1;
  for (int chip = 0; chip < chips(); ++chip) {
    if (instance_.fabric == Fabric::kTorus) {
      wire_torus(chip);
    } else {
      wire_switches(chip);
    }
  }
}

void Topology::wire_torus(int chip) {
  for (const Way way : {kEast, kWest, kSouth, kNorth, kUp, kDown}) {
    if (!has_way(way)) continue;
    const LinkKind kind =
        way == kUp || way == kDown ? LinkKind::kUltraServer : LinkKind::kNeuronLink;
    links_.push_back({kind, static_cast<std::uint8_t>(way), chip, neighbour(chip, way)});
  }
}

void Topology::wire_switches(int chip) {
  static constexpr std::array<std::pair<Way, LinkKind>, 4> kPorts = {
      {{kOut, LinkKind::kSwitchOut},
       {kIn, LinkKind::kSwitchIn},
       {kRackwardOut, LinkKind::kRackOut},
       {kRackwardIn, LinkKind::kRackIn}}};
  for (const auto& [way, kind] : kPorts) {
    if (has_way(way)) links_.push_back({kind, 0, chip, chip});
  }
  for (const int node : beyond_rack(node_of_chip(chip)))
    links_.push_back({LinkKind::kUltraServer, 0, chip, node * instance_.chips + chip_index(chip)});
}

void Topology::wire_host_and_network() {
  const auto pairs = [this](LinkKind out, LinkKind in, int count) {
    const auto first = static_cast<LinkId>(links_.size());
    for (int end = 0; end < count; ++end) {
      links_.push_back({out, 0, end, end});
      links_.push_back({in, 0, end, end});
    }
    return first;
  };
  const bool several = domain_of_node(nodes_ - 1) > 0;
  host_ = pairs(LinkKind::kHostOut, LinkKind::kHostIn, chips());
  efa_ = pairs(LinkKind::kEfaOut, LinkKind::kEfaIn, several ? nodes_ * instance_.efa_nics : 0);
  network_ =
      pairs(LinkKind::kNetworkOut, LinkKind::kNetworkIn, several && oversubscribed_ ? nodes_ : 0);
}

// ── places ──

ChipPosition Topology::position(int chip) const {
  const int local = chip_index(chip);
  if (instance_.fabric == Fabric::kSwitch) return {node_of_chip(chip), 0, local};
  return {node_of_chip(chip), local / instance_.torus_columns, local % instance_.torus_columns};
}

std::vector<int> Topology::beyond_rack(int node) const {
  const int first = domain_of_node(node) * instance_.ultraserver_nodes;
  std::vector<int> others;
  for (int other = first; other < std::min(first + instance_.ultraserver_nodes, nodes_); ++other) {
    if (!same_rack(node, other)) others.push_back(other);
  }
  return others;
}

int Topology::neighbour(int chip, Way way) const {
  const ChipPosition at = position(chip);
  const auto turn = [](int place, int step, int size) { return (place + step + size) % size; };
  const int first = domain_of_node(at.node) * instance_.ultraserver_nodes;
  switch (way) {
    case kEast: return chip_at(at.node, at.row, turn(at.column, 1, instance_.torus_columns));
    case kWest: return chip_at(at.node, at.row, turn(at.column, -1, instance_.torus_columns));
    case kSouth: return chip_at(at.node, turn(at.row, 1, instance_.torus_rows), at.column);
    case kNorth: return chip_at(at.node, turn(at.row, -1, instance_.torus_rows), at.column);
    case kUp: return chip_at(first + turn(at.node - first, 1, ring_size()), at.row, at.column);
    case kDown: return chip_at(first + turn(at.node - first, -1, ring_size()), at.row, at.column);
    default: break;
  }
  TRELLIS_CHECK(false, "only a torus has neighbours by direction");
  return -1;
}

std::vector<int> Topology::neighbours(int chip) const {
  std::vector<int> result;
  if (instance_.fabric == Fabric::kTorus) {
    for (const Way way : {kNorth, kWest, kSouth, kEast, kUp, kDown}) {
      if (has_way(way)) result.push_back(neighbour(chip, way));
    }
    return result;
  }
  const int node = node_of_chip(chip);
  const int first = domain_of_node(node) * instance_.ultraserver_nodes;
  for (int other = first; other < std::min(first + instance_.ultraserver_nodes, nodes_); ++other) {
    for (int local = 0; local < instance_.chips; ++local) {
      const int peer = other * instance_.chips + local;
      if (peer != chip && (same_rack(node, other) || local == chip_index(chip)))
        result.push_back(peer);
    }
  }
  return result;
}

std::vector<std::vector<int>> Topology::hamiltonian_cycles() const {
  const int n = instance_.torus_rows;
  if (instance_.fabric != Fabric::kTorus || n < 3 || instance_.torus_columns != n) return {};
  // n − 1 steps along a row, one to the next row, n times: the start column moves back by one each
  // time, so the cycle closes. Its mirror image at the diagonal takes exactly the wires that are
  // left over.
  std::vector<std::vector<int>> cycles(2);
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      const int place = (b - a + n) % n;
      cycles[0].push_back(a * n + place);
      cycles[1].push_back(place * n + a);
    }
  }
  return cycles;
}

// ── routes ──

LinkId Topology::on_chip(int chip, int from, int to) const {
  return (chip * cores_per_chip_ + from) * (cores_per_chip_ - 1) + to - (to > from ? 1 : 0);
}

void Topology::add(Route& route, LinkId id) const {
  route.links.push_back(id);
  route.latency += link(id).latency.value;
}

int Topology::walk(Route& route, int chip, int at, int to, int size, Way forward,
                   Way backward) const {
  const int ahead = (to - at + size) % size;
  const bool up = ahead * 2 <= size;
  for (int steps = up ? ahead : size - ahead; steps > 0; --steps) {
    add(route, chip_link(chip, up ? forward : backward));
    chip = neighbour(chip, up ? forward : backward);
  }
  return chip;
}

void Topology::route_torus(Route& route, int from_chip, int to_chip) const {
  const std::size_t before = route.links.size();
  const std::int64_t latency = route.latency;
  const ChipPosition from = position(from_chip);
  const ChipPosition to = position(to_chip);
  const int first = domain_of_node(from.node) * instance_.ultraserver_nodes;
  int chip = walk(route, from_chip, from.node - first, to.node - first, ring_size(), kUp, kDown);
  chip = walk(route, chip, from.column, to.column, instance_.torus_columns, kEast, kWest);
  walk(route, chip, from.row, to.row, instance_.torus_rows, kSouth, kNorth);
  const auto begin = route.links.begin() + static_cast<std::ptrdiff_t>(before);
  if (std::none_of(begin, route.links.end(), [this](LinkId id) { return down_.contains(id); }))
    return;
  route.links.resize(before);
  route.latency = latency;
  for (const LinkId id : way_around(from_chip, to_chip)) add(route, id);
}

std::vector<LinkId> Topology::way_around(int from_chip, int to_chip) const {
  std::map<int, LinkId> came_by{{from_chip, -1}};
  std::deque<int> next{from_chip};
  while (!next.empty() && !came_by.contains(to_chip)) {
    const int chip = next.front();
    next.pop_front();
    for (const Way way : {kEast, kWest, kSouth, kNorth, kUp, kDown}) {
      if (!has_way(way) || down_.contains(chip_link(chip, way))) continue;
      if (came_by.emplace(neighbour(chip, way), chip_link(chip, way)).second)
        next.push_back(neighbour(chip, way));
    }
  }
  std::vector<LinkId> way;
  if (!came_by.contains(to_chip)) return way;
  for (int chip = to_chip; chip != from_chip; chip = ends(way.back()).from)
    way.push_back(came_by.at(chip));
  std::reverse(way.begin(), way.end());
  return way;
}

std::vector<LinkId> Topology::links_between(int chip, int other) const {
  std::vector<LinkId> found;
  for (LinkId id = 0; id < static_cast<LinkId>(links_.size()); ++id) {
    const Link& l = ends(id);
    if (l.kind != LinkKind::kNeuronLink && l.kind != LinkKind::kUltraServer) continue;
    if ((l.from == chip && l.to == other) || (l.from == other && l.to == chip)) found.push_back(id);
  }
  return found;
}

bool Topology::has_way_around(LinkId id) const {
  const Link& l = ends(id);
  const bool of_torus = l.kind == LinkKind::kNeuronLink || l.kind == LinkKind::kUltraServer;
  return of_torus && instance_.fabric == Fabric::kTorus && !way_around(l.from, l.to).empty();
}

void Topology::route_switches(Route& route, int from_chip, int to_chip) const {
  const int from_node = node_of_chip(from_chip);
  const int to_node = node_of_chip(to_chip);
  if (from_node != to_node && same_rack(from_node, to_node)) {
    add(route, chip_link(from_chip, kRackwardOut));
    return add(route, chip_link(to_chip, kRackwardIn));
  }
  if (from_node != to_node) {
    const std::vector<int> others = beyond_rack(from_node);
    add(route,
        chip_link(from_chip, kDirect) +
            static_cast<int>(std::find(others.begin(), others.end(), to_node) - others.begin()));
    from_chip = to_node * instance_.chips + chip_index(from_chip);
  }
  if (from_chip == to_chip) return;
  add(route, chip_link(from_chip, kOut));
  add(route, chip_link(to_chip, kIn));
}

void Topology::leave(Route& route, int chip) const {
  add(route, host_link(chip, true));
  add(route, efa(nic_of(chip), true));
  if (oversubscribed_) add(route, network(node_of_chip(chip), true));
}

void Topology::enter(Route& route, int chip) const {
  if (oversubscribed_) add(route, network(node_of_chip(chip), false));
  add(route, efa(nic_of(chip), false));
  add(route, host_link(chip, false));
}

Route Topology::way_out(int core) const {
  Route route;
  leave(route, chip_of(core));
  return route;
}

Route Topology::way_in(int core) const {
  Route route;
  enter(route, chip_of(core));
  return route;
}

Route Topology::route(int from_core, int to_core) const {
  TRELLIS_CHECK(from_core >= 0 && to_core >= 0 && from_core < cores() && to_core < cores(),
                "a route leads outside the cluster");
  Route route;
  if (from_core == to_core) return route;
  const int from = chip_of(from_core);
  const int to = chip_of(to_core);
  if (from == to) {
    add(route, on_chip(from, from_core % cores_per_chip_, to_core % cores_per_chip_));
  } else if (domain_of(from_core) != domain_of(to_core)) {
    leave(route, from);
    enter(route, to);
  } else if (instance_.fabric == Fabric::kTorus) {
    route_torus(route, from, to);
  } else {
    route_switches(route, from, to);
  }
  return route;
}

int Topology::node_of_link(LinkId id) const {
  const Link& l = ends(id);
  switch (l.kind) {
    case LinkKind::kOnChip: return node_of(l.from);
    case LinkKind::kEfaOut:
    case LinkKind::kEfaIn: return l.from / instance_.efa_nics;
    case LinkKind::kNetworkOut:
    case LinkKind::kNetworkIn: return l.from;
    default: return node_of_chip(l.from);
  }
}

// ── names ──

std::string Topology::link_name(LinkId id) const {
  static constexpr std::array<const char*, kNumLinkKinds> kSuffixes = {
      ".to_core",  ".neuron_link_", ".neuron_link_", ".switch_out", ".switch_in",
      ".rack_out", ".rack_in",      ".host_out",     ".host_in",    ".efa_out",
      ".efa_in",   ".network_out",  ".network_in"};
  static constexpr std::array<const char*, 6> kWays = {"east",  "west", "south",
                                                       "north", "up",   "down"};
  const Link& l = ends(id);
  const std::string suffix = kSuffixes[index(l.kind)];
  const auto chip_name = [&](int chip) {
    return fmt::format("node{}.chip{}", node_of_chip(chip), chip_index(chip));
  };
  switch (l.kind) {
    case LinkKind::kOnChip:
      return fmt::format("{}.core{}{}{}", chip_name(chip_of(l.from)), l.from % cores_per_chip_,
                         suffix, l.to % cores_per_chip_);
    case LinkKind::kEfaOut:
    case LinkKind::kEfaIn:
      return fmt::format("node{}.nic{}{}", l.from / instance_.efa_nics, l.from % instance_.efa_nics,
                         suffix);
    case LinkKind::kNetworkOut:
    case LinkKind::kNetworkIn: return fmt::format("node{}{}", l.from, suffix);
    case LinkKind::kNeuronLink: return chip_name(l.from) + suffix + kWays[l.way];
    case LinkKind::kUltraServer:
      if (instance_.fabric == Fabric::kSwitch)
        return fmt::format("{}.to_node{}", chip_name(l.from), node_of_chip(l.to));
      return chip_name(l.from) + suffix + kWays[l.way];
    default: return chip_name(l.from) + suffix;
  }
}

LinkId Topology::find_link(const std::string& name) const {
  std::vector<std::string> of_node;  // for the nearest name
  const std::string node = name.substr(0, name.find('.')) + ".";
  for (LinkId id = 0; id < static_cast<LinkId>(links_.size()); ++id) {
    std::string other = link_name(id);
    if (other == name) return id;
    if (other.starts_with(node)) of_node.push_back(std::move(other));
  }
  const std::string near = nearest_name(name, of_node);
  throw ConfigError(
      fmt::format("link \"{}\": there is none on {} x {}: expected a name as in the links of a "
                  "report, such as {}",
                  name, nodes_, instance_.name, near.empty() ? link_name(0) : near));
}

}  // namespace trellis::sim
