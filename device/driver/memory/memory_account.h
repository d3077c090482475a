#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/driver/memory/caching_allocator.h"

namespace trellis::device {

class PassLog;

/// One rank's memory on the modelled HBM, by category and scope. Any thread may use it: tensors are
/// born and die on foreign threads too.
class MemoryAccount {
 public:
  /// `unlimited`: allocations beyond the capacity are given and the first is remembered; what lived
  /// at the peak is kept.
  MemoryAccount(int rank, Bytes capacity, bool unlimited = false)
      : rank_(rank),
        capacity_(capacity),
        unlimited_(unlimited),
        allocator_(capacity.value, timeline_, unlimited) {}

  /// nullptr: out of memory, never when unlimited. REQUIRES: bytes > 0. `scope`: interned by the
  /// rank's recorder; 0 from another thread.
  [[nodiscard]] MemoryBlock* allocate(std::int64_t bytes, BufferCategory category,
                                      std::uint32_t scope, std::uint64_t buffer);
  void release(MemoryBlock& block);
  void recategorize(MemoryBlock& block, BufferCategory category);
  /// Temporary blocks that were allocated since `op` and still live become `category`.
  void keep_since(std::uint32_t op, BufferCategory category);
  /// Another stream uses the block: once released it stays allocated until synchronize().
  void record_stream(MemoryBlock& block);
  /// The streams are done: held blocks are free.
  void synchronize();
  void empty_cache();

  /// More operations were recorded. Only the rank's own thread.
  void advance(std::uint32_t operations = 1) {
    op_.store(op_.load(std::memory_order_relaxed) + operations, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t op() const { return op_.load(std::memory_order_relaxed); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] bool unlimited() const { return unlimited_; }
  [[nodiscard]] std::int64_t current() const {
    return stats().all.allocated_bytes.current;
  }  ///< allocated
  [[nodiscard]] std::int64_t peak() const {
    return stats().all.allocated_bytes.peak;
  }  ///< allocated
  [[nodiscard]] std::int64_t peak_reserved() const { return stats().all.reserved_bytes.peak; }
  [[nodiscard]] AllocatorStats stats() const;
  [[nodiscard]] std::array<std::int64_t, kNumBufferCategories> current_by_category() const {
    return stats().by_category;
  }
  using Categories = std::array<std::int64_t, kNumBufferCategories>;
  /// When `allocated` peaked. A block that got another category later, while it lived, counts as
  /// that.
  [[nodiscard]] Categories at_peak_by_category() const;
  [[nodiscard]] std::uint32_t peak_scope() const;

  /// The most that was allocated, and reserved, when one scope allocated.
  struct ScopePeak {
    std::int64_t allocated = 0, reserved = 0;
    Categories at_peak{};  ///< of `allocated`
    std::uint64_t serial =
        0;  ///< of the allocation that made the peak; 0: the scope allocated nothing
    Categories at_start{};  ///< before the scope's first allocation, `first_serial`
    std::uint64_t first_serial = 0;
  };
  [[nodiscard]] std::vector<ScopePeak> scope_peaks() const;  ///< by scope
  struct LiveTensor {
    BufferCategory category = BufferCategory::kTemporary;
    std::uint32_t scope = 0;
    std::int64_t size = 0;  ///< allocated
  };
  /// The tensors that were alive when `allocated` peaked, by address. Only when unlimited, else
  /// empty.
  [[nodiscard]] std::vector<LiveTensor> live_at_peak() const;
  struct Refusal {
    std::uint32_t scope = 0;
    std::int64_t bytes = 0, allocated = 0;  ///< asked for; allocated before
  };
  /// The first allocation that a limited account would have refused.
  [[nodiscard]] std::optional<Refusal> first_refusal() const;
  void reset_peak();
  void reset_accumulated();

  struct Segment {
    MemorySegment segment;
    std::vector<MemoryBlock> blocks;
  };
  /// A copy of all segments and their blocks, by address.
  [[nodiscard]] std::vector<Segment> snapshot() const;
  [[nodiscard]] MemoryTimeline timeline() const;
  /// Records events from here on in `log` too; nullptr: in none.
  void record_to(PassLog* log) { log_ = log; }
  /// Serial number of the next allocation.
  [[nodiscard]] std::uint64_t next_serial() const { return serial_ + 1; }
  /// How many events are kept from here on; 0: none.
  void set_timeline_capacity(std::size_t events);

 private:
  using Lock = std::lock_guard<std::mutex>;

  void note_peaks(const MemoryBlock& block);
  void keep_live() const;
  void move_category(MemoryBlock& block, BufferCategory category);

  int rank_;
  Bytes capacity_;
  bool unlimited_;
  std::atomic<std::uint32_t> op_{0};
  mutable std::mutex mutex_;  ///< guards everything below
  MemoryTimeline timeline_;
  CachingAllocator allocator_;
  ScopePeak peak_;  ///< of all scopes
  std::uint32_t peak_scope_ = 0;
  std::vector<ScopePeak> scope_peaks_;
  std::uint64_t serial_ = 0;
  mutable bool live_is_stale_ = false;  ///< the peak is new and nothing has been freed since
  mutable std::vector<LiveTensor> live_;
  std::optional<Refusal> first_refusal_;
  PassLog* log_ = nullptr;
};

}  // namespace trellis::device
