#include "device/driver/memory_account.h"

namespace trellis::device {

MemoryBlock* MemoryAccount::allocate(std::int64_t bytes, BufferCategory category, std::uint32_t scope, std::uint64_t buffer) {
  const Lock lock(mutex_);
  const MemoryStat& allocated = allocator_.stats().all.allocated_bytes;
  const std::int64_t peak = allocated.peak;
  MemoryBlock* const block = allocator_.allocate({bytes, category, scope, op(), buffer});
  if (allocated.peak > peak) {
    at_peak_ = allocator_.stats().by_category;
    peak_scope_ = scope;
  }
  return block;
}

void MemoryAccount::release(MemoryBlock& block) {
  const Lock lock(mutex_);
  allocator_.free(block, op());
}

void MemoryAccount::recategorize(MemoryBlock& block, BufferCategory category) {
  const Lock lock(mutex_);
  if (block.category != category) allocator_.recategorize(block, category, op());
}

void MemoryAccount::keep_since(std::uint32_t since, BufferCategory category) {
  const Lock lock(mutex_);
  for (const auto& [address, segment] : allocator_.segments()) {
    for (MemoryBlock* block = segment.first; block != nullptr; block = block->after) {
      if (block->state == MemoryBlock::State::kActive && block->category == BufferCategory::kTemporary && block->op >= since)
        allocator_.recategorize(*block, category, op());
    }
  }
}

void MemoryAccount::record_stream(MemoryBlock& block) {
  const Lock lock(mutex_);
  block.used_by_stream = true;
}

void MemoryAccount::synchronize() {
  const Lock lock(mutex_);
  allocator_.release_held(op());
}

void MemoryAccount::empty_cache() {
  const Lock lock(mutex_);
  allocator_.empty_cache(op());
}

AllocatorStats MemoryAccount::stats() const {
  const Lock lock(mutex_);
  return allocator_.stats();
}

std::array<std::int64_t, kNumBufferCategories> MemoryAccount::at_peak_by_category() const {
  const Lock lock(mutex_);
  return at_peak_;
}

std::uint32_t MemoryAccount::peak_scope() const {
  const Lock lock(mutex_);
  return peak_scope_;
}

void MemoryAccount::reset_peak() {
  const Lock lock(mutex_);
  allocator_.reset_peak();
  at_peak_ = allocator_.stats().by_category;
  peak_scope_ = 0;
}

void MemoryAccount::reset_accumulated() {
  const Lock lock(mutex_);
  allocator_.reset_accumulated();
}

std::vector<MemoryAccount::Segment> MemoryAccount::snapshot() const {
  const Lock lock(mutex_);
  std::vector<Segment> all;
  for (const auto& [address, segment] : allocator_.segments()) {
    Segment& copy = all.emplace_back(Segment{segment, {}});
    for (const MemoryBlock* block = segment.first; block != nullptr; block = block->after) copy.blocks.push_back(*block);
  }
  return all;
}

MemoryTimeline MemoryAccount::timeline() const {
  const Lock lock(mutex_);
  return timeline_;
}

void MemoryAccount::set_timeline_capacity(std::size_t events) {
  const Lock lock(mutex_);
  const AllocatorStats& stats = allocator_.stats();
  timeline_.restart(events, {stats.all.reserved_bytes.current, stats.all.allocated_bytes.current, stats.all.active_bytes.current,
                             stats.by_category});
}

}  // namespace trellis::device
