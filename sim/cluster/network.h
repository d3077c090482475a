#pragma once

#include <cstdint>
#include <queue>
#include <systemc>
#include <vector>

#include "sim/cluster/comm_profile.h"
#include "sim/cluster/topology.h"
#include "sim/mem/bandwidth_server.h"

namespace trellis::sim {

/// Is told when a communication's end is known; called on the kernel's thread, at the start of the last phase.
class CommListener {
 public:
  virtual void comm_ended(std::uint32_t comm, std::int64_t end) = 0;

 protected:
  ~CommListener() = default;
};

/// All links of the cluster as bandwidth servers. A communication goes through its phases one by one; in each it asks every link that it
/// uses, and the phase lasts until the slowest has served it. Communications that share links thus take turns phase by phase.
class Network final : public sc_core::sc_module {
 public:
  explicit Network(const sc_core::sc_module_name& name);

  void configure(const Topology& topology);
  void reset(CommListener& listener);
  /// Runs `profile` from `time` on. REQUIRES: time is not before the kernel's clock; the profile outlives the run.
  void start(std::uint32_t comm, const CommProfile& profile, std::int64_t time);
  /// Links that carried something, by name.
  [[nodiscard]] std::vector<LinkUsage> usage() const;

 private:
  struct Due {
    std::int64_t time;
    std::uint32_t comm;
    std::uint32_t phase;
    const CommProfile* profile;
    bool operator<(const Due& other) const { return time != other.time ? time > other.time : comm > other.comm; }
  };
  struct Link {
    BandwidthServer server;
    std::int64_t busy = 0, bytes = 0;
  };

  void step();
  void run_phase(const Due& due);

  const Topology* topology_ = nullptr;
  CommListener* listener_ = nullptr;
  std::vector<Link> links_;
  std::priority_queue<Due> due_;
  sc_core::sc_event next_;
};

}  // namespace trellis::sim
