#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "device/driver/memory/memory_timeline.h"

namespace trellis::device {

/// The bytes that the allocator takes for a request. Below 16 MiB: the next size class, four
/// classes per doubling, at least 256 B; from 16 MiB on: not rounded, except for the 512 B that a
/// DMA descriptor moves well.
[[nodiscard]] std::int64_t size_class(std::int64_t bytes);

/// A counter of bytes or things. `allocated` and `freed` accumulate.
struct MemoryStat {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(std::int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    allocated += amount;
  }
  void decrease(std::int64_t amount) {
    current -= amount;
    freed += amount;
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};

/// Always reserved ≥ allocated ≥ active.
struct PoolStats {
  MemoryStat reserved_bytes;   ///< segments taken from HBM
  MemoryStat allocated_bytes;  ///< blocks that are not free: `active` ones, and those whose tensor
                               ///< is gone while another stream uses them
  MemoryStat active_bytes;     ///< blocks that a tensor owns
  MemoryStat requested_bytes;  ///< what the tensors of `active` asked for, before rounding
  MemoryStat allocations, active, segments;  ///< counts

  template <typename Reset>
  void each(Reset reset) {
    for (MemoryStat* stat : {&reserved_bytes, &allocated_bytes, &active_bytes, &requested_bytes,
                             &allocations, &active, &segments})
      reset(*stat);
  }
};

enum class MemoryPool : std::uint8_t { kSmall, kLarge };

struct AllocatorStats {
  PoolStats all;
  std::array<PoolStats, 2> pools;                                ///< by MemoryPool
  std::array<std::int64_t, kNumBufferCategories> by_category{};  ///< allocated bytes
  std::int64_t num_alloc_retries = 0, num_ooms = 0, num_tensor_frees = 0, allocation_requests = 0;
};

struct MemorySegment;

/// A part of a segment. The blocks of a segment tile it in order of address; no two neighbours are
/// both free.
struct MemoryBlock {
  enum class State : std::uint8_t { kFree, kActive, kHeld };

  std::int64_t address = 0, size = 0;
  std::int64_t requested = 0;  ///< bytes that were asked for
  MemorySegment* segment = nullptr;
  MemoryBlock *before = nullptr, *after = nullptr;            ///< neighbours in the segment
  MemoryBlock *free_before = nullptr, *free_after = nullptr;  ///< neighbours in the free list
  State state = State::kFree;
  bool used_by_stream = false;  ///< its release waits for the streams
  // of the tensor that owns it
  BufferCategory category = BufferCategory::kTemporary;
  std::uint32_t scope = 0;  ///< interned
  std::uint32_t op = 0;     ///< operations recorded before it was allocated
  std::uint64_t buffer = 0;
  std::uint64_t serial = 0;        ///< the account's n-th allocation
  MemoryBlock** holder = nullptr;  ///< where the tensor's storage keeps the block, when it said so
};

struct MemorySegment {
  std::int64_t address = 0, size = 0;
  MemoryPool pool = MemoryPool::kSmall;
  MemoryBlock* first = nullptr;
};

/// Free blocks of one pool, best fit: the smallest block that holds the request, of equals the one
/// that was freed last.
class FreeBlocks {
 public:
  void insert(MemoryBlock& block);
  void remove(MemoryBlock& block);
  /// Takes out the best fit; nullptr: none fits.
  MemoryBlock* take(std::int64_t size);

 private:
  // Lists of like-sized blocks, ascending: one per 64 B below 4 KiB, then sixteen per doubling, up
  // to 1 TiB.
  static constexpr std::size_t kFine = 64, kDoublings = 28, kPerDoubling = 16,
                               kLists = kFine + kDoublings * kPerDoubling;
  [[nodiscard]] static std::size_t list_of(std::int64_t size);
  [[nodiscard]] std::size_t next_filled(std::size_t list) const;  ///< kLists: none

  std::array<MemoryBlock*, kLists> lists_{};
  std::array<std::uint64_t, kLists / 64> filled_{};  ///< bit: the list has a block
};

/// TorchNeuron's caching segment allocator on the modelled HBM of one core: addresses are offsets
/// in it, nothing is stored there. Two pools (requests below 1 MiB, and from 1 MiB on); blocks are
/// split to the size class and merged when freed; segments stay cached. Sources: pools, size
/// classes, the three counters and the retry are documented for TorchNeuron 2.33; sizes of segments
/// are not, and are those of PyTorch's CUDA allocator (2 MiB; 20 MiB; from 10 MiB on a multiple of
/// 2 MiB). Not thread-safe: MemoryAccount locks.
class CachingAllocator {
 public:
  /// `unlimited`: what does not fit is counted (num_ooms) and given all the same, past the
  /// capacity.
  CachingAllocator(std::int64_t capacity, MemoryTimeline& timeline, bool unlimited = false)
      : capacity_(capacity), unlimited_(unlimited), timeline_(timeline) {}

  /// A request for a block and its purpose; `bytes` > 0.
  struct Request {
    std::int64_t bytes = 0;
    BufferCategory category = BufferCategory::kTemporary;
    std::uint32_t scope = 0, op = 0;
    std::uint64_t buffer = 0;
  };
  /// nullptr: it does not fit, also after the cache was freed. Never when unlimited.
  MemoryBlock* allocate(const Request& request);
  /// A block that a stream uses is held, not freed, until release_held().
  void free(MemoryBlock& block, std::uint32_t op);
  void release_held(std::uint32_t op);
  void recategorize(MemoryBlock& block, BufferCategory category, std::uint32_t op);
  /// Gives segments without a used block back to HBM.
  void empty_cache(std::uint32_t op);

  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] const AllocatorStats& stats() const { return stats_; }
  void reset_peak();
  void reset_accumulated();
  [[nodiscard]] const std::map<std::int64_t, MemorySegment>& segments() const {
    return segments_;
  }  ///< by address

 private:
  MemoryBlock* find_or_reserve(const Request& request, MemoryPool pool, std::int64_t size);
  MemoryBlock* reserve(MemoryPool pool, std::int64_t size, std::uint32_t op);
  [[nodiscard]] bool fits(std::int64_t size) const {
    return stats_.all.reserved_bytes.current + size <= capacity_;
  }
  [[nodiscard]] std::int64_t place(std::int64_t size) const;
  void split(MemoryBlock& block, std::int64_t size);
  void give_back(MemoryBlock& block, std::uint32_t op);
  MemoryBlock& merged(MemoryBlock& block);
  MemoryBlock& new_block();
  void retire(MemoryBlock& block) { spare_.push_back(&block); }
  std::int64_t& of(BufferCategory category) {
    return stats_.by_category[static_cast<std::size_t>(category)];
  }
  [[nodiscard]] FreeBlocks& free_blocks(MemoryPool pool) {
    return free_[static_cast<std::size_t>(pool)];
  }
  template <typename Change>
  void count(MemoryPool pool, Change change) {
    change(stats_.all);
    change(stats_.pools[static_cast<std::size_t>(pool)]);
  }

  std::int64_t capacity_;
  bool unlimited_;
  MemoryTimeline& timeline_;
  AllocatorStats stats_;
  std::map<std::int64_t, MemorySegment> segments_;
  bool gaps_ = false;  ///< a segment was given back: there may be room below the last one
  std::array<FreeBlocks, 2> free_;
  std::deque<MemoryBlock> blocks_;
  std::vector<MemoryBlock*> spare_;  ///< of `blocks_`, not in use
  std::vector<MemoryBlock*> held_;
};

}  // namespace trellis::device
