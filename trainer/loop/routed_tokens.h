#pragma once

#include <cstdint>

#include "trainer/modules/moe/routing_ledger.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

/// Returns the routing of all processes in a step on rank 0, and nothing on the others. Called by
/// the first rank of each process, when all ranks have ended the step. Waits for the other
/// processes. `ledger`: that of this process.
[[nodiscard]] RoutedTokens take_of_all_processes(RoutingLedger& ledger, runtime::RankContext& rank,
                                                 std::int64_t step);

}  // namespace trellis::trainer
