#include "device/driver/memory/memory_timeline.h"

namespace trellis::device {

std::string_view name(MemoryEventKind kind) {
  constexpr std::array<std::string_view, kNumMemoryEventKinds> kNames = {
      "alloc", "free", "hold", "recategorize", "segment_alloc", "segment_free", "retry", "oom"};
  return kNames[static_cast<std::size_t>(kind)];
}

void MemoryTotals::apply(const MemoryEvent& event) {
  const std::int64_t size = event.size();
  std::int64_t& category = by_category[event.category];
  switch (static_cast<MemoryEventKind>(event.kind)) {
    case MemoryEventKind::kAllocate: allocated += size, active += size, category += size; break;
    case MemoryEventKind::kFree:
      allocated -= size, category -= size;
      if (!event.was_held) active -= size;
      break;
    case MemoryEventKind::kHold: active -= size; break;
    case MemoryEventKind::kRecategorize:
      category += size;
      by_category[event.before] -= size;
      break;
    case MemoryEventKind::kSegment: reserved += size; break;
    case MemoryEventKind::kSegmentFree: reserved -= size; break;
    case MemoryEventKind::kRetry:
    case MemoryEventKind::kOutOfMemory: break;
  }
}

void MemoryTimeline::restart(std::size_t events, const MemoryTotals& now) {
  events_ = {};
  capacity_ = events;
  oldest_ = 0;
  dropped_ = 0;
  before_ = now;
}

std::vector<MemoryEvent> MemoryTimeline::events() const {
  std::vector<MemoryEvent> ordered(events_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                                   events_.end());
  ordered.insert(ordered.end(), events_.begin(),
                 events_.begin() + static_cast<std::ptrdiff_t>(oldest_));
  return ordered;
}

void MemoryTimeline::overwrite(const MemoryEvent& event) {
  before_.apply(events_[oldest_]);
  events_[oldest_] = event;
  oldest_ = oldest_ + 1 == capacity_ ? 0 : oldest_ + 1;
  ++dropped_;
}

}  // namespace trellis::device
