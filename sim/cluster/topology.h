#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/config/system_config.h"

namespace trellis::sim {

using LinkId = std::int32_t;

/// The way of a message: links that it occupies and the sum of their latencies.
struct Route {
  std::vector<LinkId> links;
  std::int64_t latency = 0;  ///< picoseconds
};

/// All links of a cluster, each one direction, and who uses which. Cores are global logical cores: node, chip, core in order.
///   core → core of one chip: a link per ordered pair
///   chip → chip of one instance: torus, columns first, then rows, the shorter way round (ties: upwards)
///   instance → instance of one UltraServer: a ring over the equal chips
///   instance → instance otherwise: the sender's and the receiver's share of EFA
class Topology {
 public:
  explicit Topology(const SystemConfig& system);

  [[nodiscard]] Route route(int from_core, int to_core) const;
  [[nodiscard]] std::size_t link_count() const { return static_cast<std::size_t>(efa_in(cores_)); }
  [[nodiscard]] const LinkConfig& link(LinkId id) const;
  [[nodiscard]] std::string link_name(LinkId id) const;
  [[nodiscard]] int cores() const { return cores_; }
  [[nodiscard]] int node_of(int core) const { return core / cores_per_node_; }

 private:
  /// Directions of a chip's links to other chips.
  enum Direction { kEast, kWest, kSouth, kNorth, kUp, kDown, kNumDirections };

  [[nodiscard]] int chip_of(int core) const { return core / cores_per_chip_; }
  // The ids, block by block: on-chip pairs, chip links, EFA out, EFA in.
  [[nodiscard]] LinkId on_chip(int chip, int from, int to) const { return (chip * cores_per_chip_ + from) * cores_per_chip_ + to; }
  [[nodiscard]] LinkId chip_link(int chip, int direction) const { return chips_ * cores_per_chip_ * cores_per_chip_ + chip * kNumDirections + direction; }
  [[nodiscard]] LinkId efa_out(int core) const { return chip_link(chips_, 0) + core; }
  [[nodiscard]] LinkId efa_in(int core) const { return efa_out(cores_) + core; }

  void add(Route& route, LinkId id) const;
  /// Steps of one dimension from `at` to `to` on a ring of `size`; returns the chip that is reached.
  int walk(Route& route, int chip, int at, int to, int size, int stride, Direction forward, Direction backward) const;
  void route_inside(Route& route, int from_chip, int to_chip) const;

  InstanceConfig instance_;
  int cores_per_chip_;
  int chips_per_node_;
  int cores_per_node_;
  int chips_;
  int cores_;
};

}  // namespace trellis::sim
