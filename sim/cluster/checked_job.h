#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cluster/topology.h"
#include "sim/job/job.h"

namespace trellis::sim {

/// A job whose indices are in range, with one communication per (group, sequence), and in a folded
/// job one for all groups that do it at the same moment.
struct CheckedJob {
  const ClusterJob* job = nullptr;
  std::vector<std::uint32_t> canonical;  ///< comm index → the first comm that it is one with
  std::vector<std::vector<int>>
      participants;  ///< comm index → places in ClusterJob::ranks, each once; kSendRecv: {from, to}
  std::vector<int> ranks;  ///< place in ClusterJob::ranks → rank of the world
};

/// Throws Error: kInternal for a malformed job, kHang when ranks disagree about what a (group,
/// sequence) is.
[[nodiscard]] CheckedJob check_job(const ClusterJob& job, const Topology& topology);

/// "all_reduce #3 of tp [0, 1, 2, 3]" or "send_recv #0 from rank 1 to rank 2".
[[nodiscard]] std::string describe_comm(const ClusterJob& job, const ClusterComm& comm);

/// "0, 1, 2"; long lists are cut.
[[nodiscard]] std::string join_ranks(const std::vector<int>& ranks);

}  // namespace trellis::sim
