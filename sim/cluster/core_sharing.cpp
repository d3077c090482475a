#include "sim/cluster/core_sharing.h"

#include <algorithm>

namespace trellis::sim {

CoreSharing::CoreSharing(const SystemConfig& system, const CommMachine& machine)
    : machine_(machine),
      capacity_{system.chip.hbm_bandwidth.value / system.logical_cores_per_chip(),
                system.chip.core.dma.engine_rate.value * system.chip.core.dma.engines} {}

void CoreSharing::enter_phase(std::uint32_t comm, std::int64_t alone,
                              const std::vector<CommPhase::Load>& loads) {
  leave(comm);
  std::vector<int>& cores = comms_[comm];
  if (alone <= 0) return;
  const double per_second = kPicosecondsPerSecond / static_cast<double>(alone);
  for (const auto& load : loads) {
    if (machine_.is_link(load.resource)) continue;
    const bool hbm = load.resource >= machine_.hbm_of(0);
    const int core = load.resource - (hbm ? machine_.hbm_of(0) : machine_.dma_of(0));
    CoreDemand& demand = at(core).comms[comm];
    (hbm ? demand.hbm : demand.dma) += static_cast<double>(load.bytes) * per_second;
    cores.push_back(core);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
}

void CoreSharing::leave(std::uint32_t comm) {
  const auto entry = comms_.find(comm);
  if (entry == comms_.end()) return;
  for (const int core : entry->second) at(core).comms.erase(comm);
  comms_.erase(entry);
}

double CoreSharing::stretch_of_core(int core) const {
  const Core* const c = find(core);
  if (c == nullptr || !c->segment || c->comms.empty()) return 1;
  CoreDemand sum = *c->segment;
  for (const auto& [comm, demand] : c->comms) {
    sum.hbm += demand.hbm;
    sum.dma += demand.dma;
  }
  return std::max({1.0, sum.hbm / capacity_.hbm, sum.dma / capacity_.dma});
}

double CoreSharing::stretch_of_comm(std::uint32_t comm) const {
  double stretch = 1;
  for (const int core : comms_.at(comm)) stretch = std::max(stretch, stretch_of_core(core));
  return stretch;
}

std::vector<int> CoreSharing::cores_of(std::uint32_t comm) const {
  const auto entry = comms_.find(comm);
  return entry == comms_.end() ? std::vector<int>{} : entry->second;
}

std::vector<std::uint32_t> CoreSharing::comms_on(int core) const {
  std::vector<std::uint32_t> comms;
  if (const Core* const c = find(core)) {
    for (const auto& [comm, demand] : c->comms) comms.push_back(comm);
  }
  return comms;
}

}  // namespace trellis::sim
