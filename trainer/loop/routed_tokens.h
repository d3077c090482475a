#pragma once

#include <cstdint>

#include "trainer/modules/moe/routing_ledger.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

/// Of the first rank of each process, when all ranks have ended the step: what the routers of all
/// processes did in it. The whole is rank 0's; the others get nothing. Waits for the other
/// processes. `ledger`: of this process.
[[nodiscard]] RoutedTokens take_of_all_processes(RoutingLedger& ledger, runtime::RankContext& rank,
                                                 std::int64_t step);

}  // namespace trellis::trainer
