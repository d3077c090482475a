#include "sim/cluster/comm_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace trellis::sim {
namespace {

constexpr int gray(int place) { return place ^ (place >> 1); }

/// Chips of one instance in the order of a ring: two cycles where all chips of a torus take part,
/// else row by row, back and forth.
std::vector<std::vector<int>> chip_rings(const Topology& topology, const std::set<int>& chips) {
  auto cycles = topology.hamiltonian_cycles();
  if (!cycles.empty() && cycles[0].size() == chips.size()) return cycles;
  std::vector<int> order(chips.begin(), chips.end());
  const auto snake = [&](int chip) {
    const ChipPosition at = topology.position(chip);
    return std::pair(at.row, at.row % 2 == 0 ? at.column : -at.column);
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return snake(a) < snake(b); });
  return {order};
}

}  // namespace

CommMachine::CommMachine(const SystemConfig& system)
    : topology_(system),
      costs_(system.collectives),
      start_(system.launch.collective_start),
      slow_(system.slow),
      reduce_rate_(system.chip.core.dma.engine_rate *
                   (system.instance.logical_core_size * system.chip.core.dma.engines / 3.0)),
      channel_rate_(system.chip.core.dma.engine_rate *
                    (system.instance.logical_core_size * system.chip.core.dma.engines / 8.0)) {
  rates_.resize(topology_.link_count() + 2 * static_cast<std::size_t>(topology_.cores()));
  for (LinkId id = 0; id < static_cast<LinkId>(topology_.link_count()); ++id) {
    const LinkKind kind = topology_.ends(id).kind;
    const bool efa = kind == LinkKind::kEfaOut || kind == LinkKind::kEfaIn;
    rates_[static_cast<std::size_t>(id)] =
        topology_.link(id).bandwidth * (efa ? costs_.efa_efficiency : 1.0);
  }
  for (const auto& [link, factor] : system.slow.links)
    rates_[static_cast<std::size_t>(link)] = rates_[static_cast<std::size_t>(link)] * (1 / factor);
  for (int core = 0; core < topology_.cores(); ++core) {
    rates_[static_cast<std::size_t>(dma_of(core))] =
        costs_.core_rate * system.instance.logical_core_size;
    rates_[static_cast<std::size_t>(hbm_of(core))] =
        system.chip.hbm_bandwidth * (costs_.hbm_efficiency / topology_.cores_per_chip());
  }
}

std::string CommMachine::name(ResourceId id) const {
  if (is_link(id)) return topology_.link_name(id);
  const int core = (id - dma_of(0)) % topology_.cores();
  const int chip = topology_.chip_of(core);
  return fmt::format("node{}.chip{}.core{}.{}", topology_.node_of_chip(chip),
                     topology_.chip_index(chip), core % topology_.cores_per_chip(),
                     id < hbm_of(0) ? "dma" : "hbm");
}

GroupLayout CommMachine::layout(const std::vector<int>& cores) const {
  GroupLayout layout;
  layout.cores_per_chip = topology_.cores_per_chip();
  layout.chips_per_node = topology_.instance().chips;
  std::set<int> chips;
  for (const int core : cores) {
    const int chip = topology_.chip_of(core);
    const ChipPosition at = topology_.position(chip);
    layout.node.push_back(at.node);
    layout.chip.push_back(chip);
    layout.hypercube.push_back(gray(at.row) * layout.chips_per_node + gray(at.column));
    chips.insert(topology_.chip_index(chip));
  }
  layout.chip_rings = chip_rings(topology_, chips);
  return layout;
}

}  // namespace trellis::sim
