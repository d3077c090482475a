#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/driver/caching_allocator.h"

namespace trellis::device {

/// One rank's memory on the modelled HBM, by category and scope. Any thread may use it: tensors are born and die on foreign threads too.
class MemoryAccount {
 public:
  MemoryAccount(int rank, Bytes capacity) : rank_(rank), capacity_(capacity), allocator_(capacity.value, timeline_) {}

  /// nullptr: out of memory. REQUIRES: bytes > 0. `scope`: interned by the rank's recorder; 0 from another thread.
  [[nodiscard]] MemoryBlock* allocate(std::int64_t bytes, BufferCategory category, std::uint32_t scope, std::uint64_t buffer);
  void release(MemoryBlock& block);
  void recategorize(MemoryBlock& block, BufferCategory category);
  /// Temporary blocks that were allocated since `op` and still live become `category`.
  void keep_since(std::uint32_t op, BufferCategory category);
  /// Another stream uses the block: once released it stays allocated until synchronize().
  void record_stream(MemoryBlock& block);
  /// The streams are done: held blocks are free.
  void synchronize();
  void empty_cache();

  /// One more operation was recorded. Only the rank's own thread.
  void advance() { op_.store(op_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t op() const { return op_.load(std::memory_order_relaxed); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t current() const { return stats().all.allocated_bytes.current; }   ///< allocated
  [[nodiscard]] std::int64_t peak() const { return stats().all.allocated_bytes.peak; }         ///< allocated
  [[nodiscard]] std::int64_t peak_reserved() const { return stats().all.reserved_bytes.peak; }
  [[nodiscard]] AllocatorStats stats() const;
  [[nodiscard]] std::array<std::int64_t, kNumBufferCategories> current_by_category() const { return stats().by_category; }
  /// When `allocated` peaked.
  [[nodiscard]] std::array<std::int64_t, kNumBufferCategories> at_peak_by_category() const;
  [[nodiscard]] std::uint32_t peak_scope() const;
  void reset_peak();
  void reset_accumulated();

  struct Segment {
    MemorySegment segment;
    std::vector<MemoryBlock> blocks;
  };
  /// A copy of all segments and their blocks, by address.
  [[nodiscard]] std::vector<Segment> snapshot() const;
  [[nodiscard]] MemoryTimeline timeline() const;
  /// How many events are kept from here on; 0: none.
  void set_timeline_capacity(std::size_t events);

 private:
  using Lock = std::lock_guard<std::mutex>;

  int rank_;
  Bytes capacity_;
  std::atomic<std::uint32_t> op_{0};
  mutable std::mutex mutex_;  ///< guards everything below
  MemoryTimeline timeline_;
  CachingAllocator allocator_;
  std::array<std::int64_t, kNumBufferCategories> at_peak_{};
  std::uint32_t peak_scope_ = 0;
};

}  // namespace trellis::device
