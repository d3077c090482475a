#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/config/system_config.h"
#include "sim/isa/program.h"
#include "sim/job/job.h"

/// The façade of the hardware model: plain C++, no SystemC. One Simulator per process (SystemC
/// elaborates once); it owns the kernel's thread, and every call runs there and returns when the
/// answer is ready. Calls may come from any thread.
namespace trellis::sim {

/// "core:3=1.5": what rank 3 computes takes one and a half times as long;
/// "link:node0.chip0.neuron_link_east=4": a quarter of the link's bandwidth; "link:0-1=4": of the
/// links between chips 0 and 1, both ways; "link:0-1=down": they carry nothing, and routes lead
/// around them. A factor of 1 is nothing. Throws ConfigError for other texts, ranks and links that
/// are not there, factors below 1, and links that have no way around.
[[nodiscard]] SlowParts read_slow_parts(const std::vector<std::string>& texts,
                                        const SystemConfig& system, int ranks);

/// As Simulator::time_collective, for programs that need nothing else of the machine: no kernel is
/// started. Throws ConfigError when the fabric cannot form the group, the algorithm cannot run on
/// it, or the size is not a whole number of elements (all-to-all: of blocks).
[[nodiscard]] CollectiveTiming time_collective(const SystemConfig& system,
                                               const CollectiveRequest& request);

class Simulator {
 public:
  explicit Simulator(const SystemConfig&
                         config);  ///< throws Error when a Simulator exists already in this process
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  /// Throws Error naming engines and semaphores that wait when the program deadlocks. REQUIRES:
  /// validate(program) is empty.
  [[nodiscard]] CoreTiming time_program(const isa::Program& program,
                                        const TimeOptions& options = {});
  /// Both cores of a pair at once, on one HBM stack, with their core_barriers and send_recvs. Needs
  /// a system of physical cores (logical core size 1) with two cores per stack: ConfigError
  /// otherwise, and for unequal numbers of segments. Throws Error as time_program.
  [[nodiscard]] PairTiming time_pair(const isa::Program& core0, const isa::Program& core1,
                                     const TimeOptions& options = {});
  /// A folded job's classes of equal ranks, split where this machine's links treat their ranks
  /// differently.
  [[nodiscard]] RankFold equal_ranks(const ClusterJob& job) const;
  /// Throws Error (kHang) naming ranks and communications that never meet.
  [[nodiscard]] ClusterTiming run_cluster(const ClusterJob& job);
  /// How long the same takes on the same machine without its slow parts. A folded job: before it
  /// was split by equal_ranks.
  [[nodiscard]] Picoseconds makespan_without_slow_parts(const ClusterJob& job);
  [[nodiscard]] CollectiveTiming time_collective(const CollectiveRequest& request) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::sim
