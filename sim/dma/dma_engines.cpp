#include "sim/dma/dma_engines.h"

#include <algorithm>
#include <limits>

namespace trellis::sim {

void DmaEngines::reset(std::int64_t now) {
  std::fill(free_.begin(), free_.end(), now);
  next_ = 0;
}

DmaEngines::Slot DmaEngines::serve(std::int64_t now, std::int64_t descriptors, std::int64_t descriptor_time) {
  const auto n = static_cast<std::int64_t>(free_.size());
  const std::int64_t each = descriptors / n;
  const std::int64_t used = std::min(descriptors, n);
  std::int64_t more = descriptors % n;  // the first engines get one descriptor more
  Slot slot{std::numeric_limits<std::int64_t>::max(), 0};
  for (std::int64_t i = 0; i < used; ++i) {
    std::int64_t& free = free_[next_];
    if (++next_ == free_.size()) next_ = 0;
    const std::int64_t begin = std::max(now, free);
    free = begin + (each + (more > 0 ? 1 : 0)) * descriptor_time;
    if (more > 0) --more;
    slot.begin = std::min(slot.begin, begin);
    slot.end = std::max(slot.end, free);
  }
  // A chunk that uses every engine ends where it began; shift by the remainder so that the extra descriptors wander too.
  if (used == n) next_ = (next_ + static_cast<std::size_t>(descriptors % n)) % free_.size();
  return slot;
}

}  // namespace trellis::sim
