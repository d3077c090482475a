#pragma once

#include <string>
#include <vector>

#include "sim/cluster/topology.h"
#include "sim/collectives/plan.h"

namespace trellis::sim {

/// Why the fabric cannot form a group of these global logical cores for this kind of communication,
/// and what to do; "" when it can. Only documented rules refuse (SDK internode-collective-comm.rst,
/// runtime release notes, generative-llm-inference-with-neuron.rst):
///   cores exist, each once · the nodes of a group that uses EFA hold the same local cores ·
///     adjacent cores of one Trn1 instance come in
///   groups of 2, 4, 8, 16 or 32 (tensor parallel degrees 2, 8, 32 and later 4;
///     nccom-test.rst shows 16 ranks).
/// Transfers between two cores know only the first.
[[nodiscard]] std::string why_illegal(const Topology& topology, CollectiveKind kind,
                                      const std::vector<int>& cores);

}  // namespace trellis::sim
