#pragma once

#include "sim/cluster/comm_machine.h"
#include "sim/job/job.h"

namespace trellis::sim {

/// See Simulator::time_collective: the phases of the communication one after the other, with no one
/// else on the machine.
[[nodiscard]] CollectiveTiming time_collective(const CommMachine& machine,
                                               const CollectiveRequest& request);

/// The factor by which nccom-test multiplies the algorithm bandwidth (SDK nccom-test.rst).
[[nodiscard]] double bus_factor(CollectiveKind kind, int members);

}  // namespace trellis::sim
