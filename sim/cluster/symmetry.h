#pragma once

#include "sim/cluster/comm_machine.h"
#include "sim/job/job.h"

namespace trellis::sim {

class CommTraffic;

/// Classes of ranks of a folded job that are equal on this machine: the fold's classes, split until
/// the ranks of each see the same. Two ranks see the same when their communications, the links that
/// these use and what else uses those links agree all the way (a colouring that is refined until it
/// is stable, as for isomorphic graphs); then they do everything at the same moments, and one may
/// represent both. Instances of a machine are alike, unless a part of it is slow: what lies on
/// instances without a representative is judged by its place there.
/// `traffic`: of this machine.
[[nodiscard]] RankFold equal_ranks(const ClusterJob& job, const CommMachine& machine,
                                   CommTraffic& traffic);

}  // namespace trellis::sim
