#pragma once

#include <string>
#include <vector>

#include "device/driver/timing/step_stream.h"

namespace trellis::device {

/// A rank's record of one step.
struct RecordedRank {
  int rank = 0;  ///< of the world
  const StepStream* stream = nullptr;
  const std::vector<Graph>* graphs = nullptr;
};

/// Ranks that differ on the axes "PP" and "CP" alone run other programs on a device: any other rank
/// whose operations differ needs a binary of its own, which training software refuses or waits for.
/// The first operation that differs from that of the program's first rank, with layer and ranks;
/// "": none. Names, types and the number of dimensions are compared. Not compared are shapes and
/// numbers, which differ where tokens are routed to experts; copies between host and device; and
/// sends, which the two ends order differently. A program without axes is one, unless its ranks
/// send to each other: they may be stages, and are not compared.
[[nodiscard]] std::string rank_divergence(const std::vector<RecordedRank>& ranks,
                                          const std::vector<RankAxis>& axes);

}  // namespace trellis::device
