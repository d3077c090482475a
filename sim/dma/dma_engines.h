#pragma once

#include <cstdint>
#include <vector>

#include "sim/dma/dma_cost.h"

namespace trellis::sim {

/// The DMA engines of a core as servers: each works through what it is given in order.
class DmaEngines {
 public:
  struct Slot {
    std::int64_t begin, end;
  };

  void configure(int engines) { free_.assign(static_cast<std::size_t>(engines), 0); }
  void reset(std::int64_t now);
  [[nodiscard]] int count() const { return static_cast<int>(free_.size()); }

  /// The descriptors [from, from + count) of each engine of the transfer, ready at `now`. REQUIRES:
  /// 0 ≤ from < t.per_engine, count > 0.
  Slot serve(std::int64_t now, const DmaTransfer& t, std::int64_t from, std::int64_t count);
  /// Every engine ends a transfer with a semaphore write: those that have no part in its data at
  /// once, the others after their data.
  enum class Part { kIdle, kBusy };
  /// Returns when the last one is written, `now` when there is none.
  std::int64_t write_semaphores(std::int64_t now, const DmaTransfer& t, Part part,
                                std::int64_t duration);

  /// When each engine is free, from `now` on.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const;

 private:
  std::vector<std::int64_t> free_;
};

}  // namespace trellis::sim
