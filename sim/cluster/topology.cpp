#include "sim/cluster/topology.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"

namespace trellis::sim {

Topology::Topology(const SystemConfig& system)
    : instance_(system.instance),
      cores_per_chip_(system.logical_cores_per_chip()),
      chips_per_node_(system.instance.chips),
      cores_per_node_(system.logical_cores_per_node()),
      chips_(system.nodes * system.instance.chips),
      cores_(system.logical_cores()) {}

const LinkConfig& Topology::link(LinkId id) const {
  if (id < chip_link(0, 0)) return instance_.on_chip;
  if (id >= efa_out(0)) return instance_.efa;
  const int direction = (id - chip_link(0, 0)) % kNumDirections;
  return direction == kUp || direction == kDown ? instance_.ultraserver_link : instance_.neuron_link;
}

std::string Topology::link_name(LinkId id) const {
  static constexpr std::array<const char*, kNumDirections> kDirections = {"east", "west", "south", "north", "up", "down"};
  const auto chip_name = [&](int chip) { return fmt::format("node{}.chip{}", chip / chips_per_node_, chip % chips_per_node_); };
  const auto core_name = [&](int core) { return fmt::format("{}.core{}", chip_name(core / cores_per_chip_), core % cores_per_chip_); };
  if (id >= efa_in(0)) return core_name(id - efa_in(0)) + ".efa_in";
  if (id >= efa_out(0)) return core_name(id - efa_out(0)) + ".efa_out";
  if (id >= chip_link(0, 0)) {
    const int local = id - chip_link(0, 0);
    return chip_name(local / kNumDirections) + ".neuron_link_" + kDirections[static_cast<std::size_t>(local % kNumDirections)];
  }
  return fmt::format("{}.to_core{}", core_name(id / cores_per_chip_), id % cores_per_chip_);
}

void Topology::add(Route& route, LinkId id) const {
  route.links.push_back(id);
  route.latency += link(id).latency.value;
}

int Topology::walk(Route& route, int chip, int at, int to, int size, int stride, Direction forward, Direction backward) const {
  const int ahead = (to - at + size) % size;
  const bool up = ahead * 2 <= size;
  for (int steps = up ? ahead : size - ahead; steps > 0; --steps) {
    add(route, chip_link(chip, up ? forward : backward));
    const int next = (at + (up ? 1 : size - 1)) % size;
    chip += (next - at) * stride;
    at = next;
  }
  return chip;
}

void Topology::route_inside(Route& route, int from_chip, int to_chip) const {
  const int columns = instance_.torus_columns;
  const int from = from_chip % chips_per_node_;
  const int to = to_chip % chips_per_node_;
  const int corner = walk(route, from_chip, from % columns, to % columns, columns, 1, kEast, kWest);
  walk(route, corner, from / columns, to / columns, instance_.torus_rows, columns, kSouth, kNorth);
}

Route Topology::route(int from_core, int to_core) const {
  TRELLIS_CHECK(from_core >= 0 && to_core >= 0 && from_core < cores_ && to_core < cores_, "a route leads outside the cluster");
  Route route;
  if (from_core == to_core) return route;
  const int from_chip = chip_of(from_core);
  const int to_chip = chip_of(to_core);
  const int from_node = node_of(from_core);
  const int to_node = node_of(to_core);
  const int size = instance_.ultraserver_nodes;
  if (from_chip == to_chip) {
    add(route, on_chip(from_chip, from_core % cores_per_chip_, to_core % cores_per_chip_));
  } else if (from_node == to_node) {
    route_inside(route, from_chip, to_chip);
  } else if (size > 1 && from_node / size == to_node / size) {
    const int chip = walk(route, from_chip, from_node % size, to_node % size, size, chips_per_node_, kUp, kDown);
    route_inside(route, chip, to_chip);
  } else {
    add(route, efa_out(from_core));
    // One trip through the network: the latency counts once.
    route.links.push_back(efa_in(to_core));
  }
  return route;
}

}  // namespace trellis::sim
