#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster/comm_machine.h"
#include "sim/collectives/outline.h"

namespace trellis::sim {

/// A stretch of a communication: some rounds of its plan, summed up.
struct CommPhase {
  struct Load {
    ResourceId resource = 0;
    std::int64_t bytes = 0;
  };
  std::int64_t alone = 0;           ///< picoseconds when no one else uses the resources
  std::vector<Load> loads;          ///< by resource
  std::vector<Load> on_cores = {};  ///< those of them that computation on the same cores feels
};

/// The load of a communication on the machine. The stages of its plan follow each other. A stage
/// takes the latency of its rounds (the slowest route, the messages of the busiest member one after
/// the other), the time of its busiest resource, and the reduction of the last slice of two, which
/// no transfer hides. Stages are cut or summed into a few phases, between which other
/// communications can start.
struct CommProfile {
  std::vector<CommPhase> phases;
  std::int64_t wire_bytes = 0;  ///< over all links
};

/// A plan as it asks things of the machine, without saying where its members are.
struct PlanTraffic {
  std::vector<StageTraffic> parts;
  std::vector<bool> ends_phase;  ///< by part
};
[[nodiscard]] PlanTraffic plan_traffic(const PlanOutline& outline);

/// The domains of a group whose resources count; each of the others is like one of them.
struct KeptDomains {
  std::vector<int> of_member;  ///< the group's own numbers of its domains
  std::vector<bool> kept;      ///< by domain
  std::vector<std::int64_t>
      represents;  ///< by domain: for how many, itself included; 0: another one does
};

/// `cores`: global core of each member, ascending. With `domains`: loads of those that are kept
/// alone. REQUIRES: `plan` has all in which they take part.
[[nodiscard]] CommProfile profile_traffic(const PlanTraffic& plan, const std::vector<int>& cores,
                                          int element_bytes, const CommMachine& machine,
                                          const KeptDomains* domains = nullptr);
[[nodiscard]] CommProfile profile_outline(const PlanOutline& outline, const std::vector<int>& cores,
                                          int element_bytes, const CommMachine& machine);

/// A communication as it is asked for. Members are ordered by core; kSendRecv: sender, receiver.
struct CommShape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<int> cores;
  std::int64_t elements = 0;
  int element_bytes = 1;
};

/// Looks the algorithm up in the selection table.
[[nodiscard]] AlgorithmChoice choose_algorithm(const CommShape& shape, const CommMachine& machine);
[[nodiscard]] CommProfile profile_comm(const CommShape& shape, const AlgorithmChoice& choice,
                                       const CommMachine& machine);
/// The first communication while the others go on concurrently with it, phase by phase. wire_bytes
/// are the first one's.
[[nodiscard]] CommProfile add_up(CommProfile first, const std::vector<CommProfile>& concurrent);

}  // namespace trellis::sim
