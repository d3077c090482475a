#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cluster/topology.h"
#include "sim/collectives/layout.h"
#include "sim/collectives/selection.h"

namespace trellis::sim {

/// A server of bytes that communications share: a link, the DMA engines of a core, a core's share
/// of HBM.
using ResourceId = std::int32_t;

/// The machine as communications see it: resources with their rates, and what a message costs
/// next to them. Links keep their ids.
class CommMachine {
 public:
  explicit CommMachine(const SystemConfig& system);

  [[nodiscard]] const Topology& topology() const { return topology_; }
  [[nodiscard]] std::size_t resource_count() const { return rates_.size(); }
  [[nodiscard]] BytesPerSecond rate(ResourceId id) const {
    return rates_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_link(ResourceId id) const { return id < dma_of(0); }
  [[nodiscard]] std::string name(ResourceId id) const;
  [[nodiscard]] ResourceId dma_of(int core) const {
    return static_cast<ResourceId>(topology_.link_count()) + core;
  }
  [[nodiscard]] ResourceId hbm_of(int core) const { return dma_of(topology_.cores()) + core; }
  /// REQUIRES: no link.
  [[nodiscard]] int core_of(ResourceId id) const { return (id - dma_of(0)) % topology_.cores(); }

  [[nodiscard]] const CollectiveConfig& costs() const { return costs_; }
  [[nodiscard]] Picoseconds start() const { return start_; }
  /// Links have their rates already.
  [[nodiscard]] const SlowParts& slow() const { return slow_; }
  /// Rate of a sum into memory by the DMA engines of one logical core: two reads, one write.
  [[nodiscard]] BytesPerSecond reduce_rate() const { return reduce_rate_; }
  /// Rate of one of a rank's four channels: its quarter of the DMA engines reads and writes every
  /// byte.
  [[nodiscard]] BytesPerSecond channel_rate() const { return channel_rate_; }
  [[nodiscard]] SelectionTable selection() const {
    return {costs_.single_step_max, costs_.mesh_max, costs_.rdh_max};
  }
  /// Where these cores (ascending) lie.
  [[nodiscard]] GroupLayout layout(const std::vector<int>& cores) const;

 private:
  Topology topology_;
  CollectiveConfig costs_;
  Picoseconds start_;
  SlowParts slow_;
  BytesPerSecond reduce_rate_;
  BytesPerSecond channel_rate_;
  std::vector<BytesPerSecond> rates_;
};

}  // namespace trellis::sim
