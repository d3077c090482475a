#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace trellis::sim {

/// An amount (bytes, requests) that moves over limits which it shares with others.
struct ShareFlow {
  int node = 0;  ///< flows of a node share its limit
  std::int64_t amount = 0;
  Picoseconds start;
  std::int64_t mark = 0;  ///< SharedTime::marked is when so much is left
};

/// Amounts per second; 0: no limit.
struct ShareLimits {
  std::int64_t flow = 0, node = 0, all = 0;
};

struct SharedTime {
  Picoseconds marked, end;
  bool operator==(const SharedTime&) const = default;
};

/// When each flow ends if at any time every flow gets the same rate, less only where a limit holds
/// it down: max-min fair sharing. Exact in integers except for rates, which are whole amounts per
/// second, rounded down. REQUIRES: some limit; amounts ≥ 0, at most 2^60.
[[nodiscard]] std::vector<SharedTime> share_fairly(const std::vector<ShareFlow>& flows,
                                                   const ShareLimits& limits);

}  // namespace trellis::sim
