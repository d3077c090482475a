#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "device/compiler/emit/phase.h"

/// Finds out which instructions of a phase must wait for which, so that five queues and the DMA
/// rings keep the meaning of the sequential code.
///
/// Two accesses to one tile conflict when one of them writes. They are ordered inside an iteration
/// of the innermost loop that holds both ("forward"), and from an iteration to the `distance`-th
/// next one ("carried": the tile's ring has that many slots). A conflict that is already implied by
/// others costs nothing. Each remaining one is a post by the earlier instruction and a wait by the
/// later one; posts and waits of one pair of executors that come in the same order share a
/// semaphore, as tokens in a queue. Relies on: an engine executes in order; the transfers of one
/// ring complete in order.
namespace trellis::device {

struct SyncPlan {
  struct Token {
    int semaphore = 0;  ///< local number
    std::int64_t value = 1;
  };
  std::vector<std::vector<Token>> waits, posts;  ///< per entry that is an instruction
  std::map<std::pair<int, int>, std::vector<Token>>
      loop_waits;  ///< (loop begin entry, engine): before the loop
  std::map<std::pair<int, int>, std::vector<Token>>
      loop_posts;  ///< (loop end entry, engine): after the loop
  std::array<std::vector<Token>, isa::kNumEngines>
      credits;  ///< posted by the waiter itself before its first instruction
  std::array<std::vector<Token>, isa::kNumEngines> drains;  ///< taken back by the waiter at the end
  std::vector<int> waiter;                                  ///< semaphore → engine
};

[[nodiscard]] SyncPlan plan_sync(const Phase& phase);

}  // namespace trellis::device
