#include "device/driver/memory/caching_allocator.h"

#include <bit>
#include <limits>

namespace trellis::device {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kLargeSegment = 20 * kMiB;
constexpr std::int64_t kOwnSegment =
    10 * kMiB;  ///< from here on a request gets a segment of exactly its size

MemoryPool pool_of(std::int64_t bytes) {
  return bytes < kMiB ? MemoryPool::kSmall : MemoryPool::kLarge;
}

std::int64_t segment_size(MemoryPool pool, std::int64_t size) {
  if (pool == MemoryPool::kSmall) return kSmallSegment;
  if (size < kOwnSegment) return kLargeSegment;
  return (size + kSmallSegment - 1) / kSmallSegment * kSmallSegment;
}

std::uint32_t units(std::int64_t bytes) {
  return static_cast<std::uint32_t>(std::min<std::int64_t>(
      bytes / MemoryEvent::kUnit, std::numeric_limits<std::uint32_t>::max()));
}

MemoryEvent event(MemoryEventKind kind, std::uint32_t op, MemoryPool pool, std::int64_t address,
                  std::int64_t size) {
  MemoryEvent event;
  event.op = op;
  event.address_units = units(address);
  event.size_units = units(size);
  event.kind = static_cast<std::uint32_t>(kind) & 15U;
  event.small_pool = pool == MemoryPool::kSmall ? 1 : 0;
  return event;
}

MemoryEvent event(MemoryEventKind kind, std::uint32_t op, const MemoryBlock& block) {
  MemoryEvent of_block = event(kind, op, block.segment->pool, block.address, block.size);
  of_block.scope = std::min(block.scope, MemoryEvent::kManyScopes) & MemoryEvent::kManyScopes;
  of_block.category = static_cast<std::uint32_t>(block.category) & 7U;
  return of_block;
}

}  // namespace

std::int64_t size_class(std::int64_t bytes) {
  constexpr std::int64_t kSmallest = 256;
  constexpr std::int64_t kUnrounded = 16 * kMiB;
  constexpr std::int64_t kDescriptor = 512;
  if (bytes <= 0) return 0;
  if (bytes <= kSmallest) return kSmallest;
  if (bytes >= kUnrounded) return (bytes + kDescriptor - 1) / kDescriptor * kDescriptor;
  const auto below =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes - 1)));
  const std::int64_t step = below / 4;
  return (bytes + step - 1) / step * step;
}

// ── free lists ──

std::size_t FreeBlocks::list_of(std::int64_t size) {
  constexpr int kFineBits = 12;
  const auto bytes = static_cast<std::uint64_t>(size);
  if (bytes < (std::uint64_t{1} << kFineBits))
    return static_cast<std::size_t>(bytes / MemoryEvent::kUnit);
  const auto log = static_cast<int>(std::bit_width(bytes)) - 1;
  const std::uint64_t sixteenth = (bytes >> (log - 4)) & (kPerDoubling - 1);
  return std::min(kFine + static_cast<std::size_t>(log - kFineBits) * kPerDoubling +
                      static_cast<std::size_t>(sixteenth),
                  kLists - 1);
}

std::size_t FreeBlocks::next_filled(std::size_t list) const {
  std::size_t word = list / 64;
  if (word >= filled_.size()) return kLists;
  std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (list % 64));
  while (bits == 0) {
    if (++word == filled_.size()) return kLists;
    bits = filled_[word];
  }
  return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
}

void FreeBlocks::insert(MemoryBlock& block) {
  const std::size_t list = list_of(block.size);
  MemoryBlock *before = nullptr, *after = lists_[list];
  while (after != nullptr && after->size < block.size) {
    before = after;
    after = after->free_after;
  }
  block.free_before = before;
  block.free_after = after;
  (before != nullptr ? before->free_after : lists_[list]) = &block;
  if (after != nullptr) after->free_before = &block;
  filled_[list / 64] |= std::uint64_t{1} << (list % 64);
}

void FreeBlocks::remove(MemoryBlock& block) {
  if (block.free_after != nullptr) block.free_after->free_before = block.free_before;
  if (block.free_before != nullptr) {
    block.free_before->free_after = block.free_after;
    return;
  }
  const std::size_t list = list_of(block.size);
  lists_[list] = block.free_after;
  if (block.free_after == nullptr) filled_[list / 64] &= ~(std::uint64_t{1} << (list % 64));
}

MemoryBlock* FreeBlocks::take(std::int64_t size) {
  const std::size_t own = list_of(size);
  MemoryBlock* block = lists_[own];
  while (block != nullptr && block->size < size) block = block->free_after;
  if (block == nullptr) {
    const std::size_t list = next_filled(own + 1);
    if (list == kLists) return nullptr;
    block = lists_[list];
  }
  remove(*block);
  return block;
}

// ── blocks ──

MemoryBlock* CachingAllocator::allocate(const Request& request) {
  ++stats_.allocation_requests;
  const MemoryPool pool = pool_of(request.bytes);
  const std::int64_t size = size_class(request.bytes);
  MemoryBlock* const block = find_or_reserve(request, pool, size);
  if (block == nullptr) return nullptr;
  if (block->size > size) split(*block, size);
  block->state = MemoryBlock::State::kActive;
  block->used_by_stream = false;
  block->requested = request.bytes;
  block->category = request.category;
  block->scope = request.scope;
  block->op = request.op;
  block->buffer = request.buffer;
  block->holder = nullptr;
  count(pool, [&](PoolStats& stats) {
    stats.allocated_bytes.increase(size);
    stats.active_bytes.increase(size);
    stats.requested_bytes.increase(request.bytes);
    stats.allocations.increase(1);
    stats.active.increase(1);
  });
  of(block->category) += size;
  timeline_.add(event(MemoryEventKind::kAllocate, request.op, *block));
  return block;
}

MemoryBlock* CachingAllocator::find_or_reserve(const Request& request, MemoryPool pool,
                                               std::int64_t size) {
  if (MemoryBlock* const cached = free_blocks(pool).take(size)) return cached;
  const std::int64_t wanted = segment_size(pool, size);
  if (fits(wanted)) return reserve(pool, wanted, request.op);
  ++stats_.num_alloc_retries;
  timeline_.add(event(MemoryEventKind::kRetry, request.op, pool, 0, wanted));
  release_held(request.op);
  if (MemoryBlock* const cached = free_blocks(pool).take(size)) return cached;
  empty_cache(request.op);
  if (fits(wanted)) return reserve(pool, wanted, request.op);
  if (fits(size))
    return reserve(
        pool, size,
        request.op);  // the last of the HBM is not refused for the sake of a round segment
  ++stats_.num_ooms;
  timeline_.add(event(MemoryEventKind::kOutOfMemory, request.op, pool, 0, size));
  return unlimited_ ? reserve(pool, wanted, request.op) : nullptr;
}

void CachingAllocator::free(MemoryBlock& block, std::uint32_t op) {
  ++stats_.num_tensor_frees;
  count(block.segment->pool, [&](PoolStats& stats) {
    stats.active_bytes.decrease(block.size);
    stats.requested_bytes.decrease(block.requested);
    stats.active.decrease(1);
  });
  if (block.used_by_stream) {
    block.state = MemoryBlock::State::kHeld;
    held_.push_back(&block);
    timeline_.add(event(MemoryEventKind::kHold, op, block));
  } else {
    give_back(block, op);
  }
}

void CachingAllocator::release_held(std::uint32_t op) {
  for (MemoryBlock* block : held_) give_back(*block, op);
  held_.clear();
}

void CachingAllocator::recategorize(MemoryBlock& block, BufferCategory category, std::uint32_t op) {
  MemoryEvent change = event(MemoryEventKind::kRecategorize, op, block);
  change.before = change.category;
  change.category = static_cast<std::uint32_t>(category) & 7U;
  of(block.category) -= block.size;
  of(category) += block.size;
  block.category = category;
  timeline_.add(change);
}

void CachingAllocator::give_back(MemoryBlock& block, std::uint32_t op) {
  MemoryEvent freed = event(MemoryEventKind::kFree, op, block);
  freed.was_held = block.state == MemoryBlock::State::kHeld ? 1 : 0;
  timeline_.add(freed);
  const MemoryPool pool = block.segment->pool;
  count(pool, [&](PoolStats& stats) {
    stats.allocated_bytes.decrease(block.size);
    stats.allocations.decrease(1);
  });
  of(block.category) -= block.size;
  block.state = MemoryBlock::State::kFree;
  free_blocks(pool).insert(merged(block));
}

void CachingAllocator::split(MemoryBlock& block, std::int64_t size) {
  MemoryBlock& rest = new_block();
  rest.address = block.address + size;
  rest.size = block.size - size;
  rest.segment = block.segment;
  rest.before = &block;
  rest.after = block.after;
  if (rest.after != nullptr) rest.after->before = &rest;
  block.after = &rest;
  block.size = size;
  free_blocks(block.segment->pool).insert(rest);
}

MemoryBlock& CachingAllocator::merged(MemoryBlock& block) {
  FreeBlocks& free = free_blocks(block.segment->pool);
  if (MemoryBlock* const after = block.after;
      after != nullptr && after->state == MemoryBlock::State::kFree) {
    free.remove(*after);
    block.size += after->size;
    block.after = after->after;
    if (block.after != nullptr) block.after->before = &block;
    retire(*after);
  }
  MemoryBlock* const before = block.before;
  if (before == nullptr || before->state != MemoryBlock::State::kFree) return block;
  free.remove(*before);
  before->size += block.size;
  before->after = block.after;
  if (before->after != nullptr) before->after->before = before;
  retire(block);
  return *before;
}

MemoryBlock& CachingAllocator::new_block() {
  if (spare_.empty()) return blocks_.emplace_back();
  MemoryBlock& block = *spare_.back();
  spare_.pop_back();
  block.state = MemoryBlock::State::kFree;
  block.before = block.after = nullptr;
  return block;
}

// ── segments ──

std::int64_t CachingAllocator::place(std::int64_t size) const {
  std::int64_t end = 0;
  if (!gaps_)
    return segments_.empty() ? 0
                             : segments_.rbegin()->second.address + segments_.rbegin()->second.size;
  for (const auto& [address, segment] : segments_) {
    if (address - end >= size) break;
    end = address + segment.size;
  }
  return end;
}

MemoryBlock* CachingAllocator::reserve(MemoryPool pool, std::int64_t size, std::uint32_t op) {
  const std::int64_t address = place(size);
  MemorySegment& segment = segments_[address];
  MemoryBlock& block = new_block();
  block.address = address;
  block.size = size;
  block.segment = &segment;
  segment = {address, size, pool, &block};
  count(pool, [&](PoolStats& stats) {
    stats.reserved_bytes.increase(size);
    stats.segments.increase(1);
  });
  timeline_.add(event(MemoryEventKind::kSegment, op, pool, address, size));
  return &block;
}

void CachingAllocator::empty_cache(std::uint32_t op) {
  for (auto it = segments_.begin(); it != segments_.end();) {
    MemorySegment& segment = it->second;
    MemoryBlock& only = *segment.first;
    if (only.state != MemoryBlock::State::kFree || only.after != nullptr) {
      ++it;
      continue;
    }
    free_blocks(segment.pool).remove(only);
    retire(only);
    count(segment.pool, [&](PoolStats& stats) {
      stats.reserved_bytes.decrease(segment.size);
      stats.segments.decrease(1);
    });
    timeline_.add(
        event(MemoryEventKind::kSegmentFree, op, segment.pool, segment.address, segment.size));
    it = segments_.erase(it);
    gaps_ = true;
  }
}

void CachingAllocator::reset_peak() {
  for (PoolStats* stats : {&stats_.all, &stats_.pools[0], &stats_.pools[1]})
    stats->each([](MemoryStat& stat) { stat.reset_peak(); });
}

void CachingAllocator::reset_accumulated() {
  for (PoolStats* stats : {&stats_.all, &stats_.pools[0], &stats_.pools[1]})
    stats->each([](MemoryStat& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_tensor_frees =
      stats_.allocation_requests = 0;
}

}  // namespace trellis::device
