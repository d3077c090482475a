#include "sim/dma/dma_engines.h"

#include <algorithm>
#include <limits>

namespace trellis::sim {

void DmaEngines::reset(std::int64_t now) { std::fill(free_.begin(), free_.end(), now); }

DmaEngines::Slot DmaEngines::serve(std::int64_t now, const DmaTransfer& t, std::int64_t from,
                                   std::int64_t count) {
  Slot slot{std::numeric_limits<std::int64_t>::max(), 0};
  std::int64_t left = t.descriptors;
  for (int e = t.first_engine; e < t.first_engine + t.num_engines; ++e) {
    const std::int64_t here = std::min(left, t.per_engine);
    left -= here;
    const std::int64_t n = std::min(here - from, count);
    if (n <= 0) continue;
    std::int64_t& free = free_[static_cast<std::size_t>(e)];
    const std::int64_t begin = std::max(now, free);
    free = begin + n * t.descriptor_time.value;
    slot.begin = std::min(slot.begin, begin);
    slot.end = std::max(slot.end, free);
  }
  return slot;
}

std::int64_t DmaEngines::write_semaphores(std::int64_t now, const DmaTransfer& t, Part part,
                                          std::int64_t duration) {
  std::int64_t last = now;
  for (int e = 0; e < count(); ++e) {
    const bool busy = e >= t.first_engine && e < t.first_engine + t.num_engines;
    if (busy != (part == Part::kBusy)) continue;
    std::int64_t& free = free_[static_cast<std::size_t>(e)];
    free = std::max(now, free) + duration;
    last = std::max(last, free);
  }
  return last;
}

void DmaEngines::append_state(std::vector<std::int64_t>& out, std::int64_t now) const {
  for (const std::int64_t free : free_) out.push_back(std::max<std::int64_t>(free - now, 0));
}

}  // namespace trellis::sim
