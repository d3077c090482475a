#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sim/cluster/comm_profile.h"
#include "sim/cluster/sparse_array.h"

namespace trellis::sim {

/// Bytes per second that something needs of one core.
struct CoreDemand {
  double hbm = 0;  ///< of its share of HBM
  double dma = 0;  ///< of its DMA engines
};

/// Users of the memory and the DMA engines of each core: the running segment and the communications
/// in flight, as flows. Where their demands exceed what there is, all of them slow down by the same
/// factor, so that work is conserved.
class CoreSharing {
 public:
  CoreSharing(const SystemConfig& system, const CommMachine& machine);

  void start_segment(int core, const CoreDemand& demand) { at(core).segment = demand; }
  void end_segment(int core) { at(core).segment.reset(); }
  /// The communication is in a phase of these loads from now on, which takes `alone` picoseconds by
  /// itself.
  void enter_phase(std::uint32_t comm, std::int64_t alone,
                   const std::vector<CommPhase::Load>& loads);
  void leave(std::uint32_t comm);

  /// 1 while everything fits, or while nothing meets on this core.
  [[nodiscard]] double stretch_of_core(int core) const;
  /// A communication is as slow as on its slowest core.
  [[nodiscard]] double stretch_of_comm(std::uint32_t comm) const;
  [[nodiscard]] bool computes(int core) const {
    return find(core) != nullptr && find(core)->segment.has_value();
  }
  /// Ascending; empty when the communication is not in flight.
  [[nodiscard]] std::vector<int> cores_of(std::uint32_t comm) const;
  [[nodiscard]] std::vector<std::uint32_t> comms_on(int core) const;

 private:
  struct Core {
    std::optional<CoreDemand> segment;
    std::map<std::uint32_t, CoreDemand> comms;
  };
  [[nodiscard]] Core& at(int core) { return cores_[static_cast<std::size_t>(core)]; }
  /// nullptr: nothing was ever there.
  [[nodiscard]] const Core* find(int core) const {
    return cores_.find(static_cast<std::size_t>(core));
  }

  const CommMachine& machine_;
  CoreDemand capacity_;
  SparseArray<Core> cores_;
  std::map<std::uint32_t, std::vector<int>> comms_;  ///< in flight → cores that it uses, ascending
};

}  // namespace trellis::sim
