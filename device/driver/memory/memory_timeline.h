#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/compiler/graph/op_record.h"

namespace trellis::device {

enum class MemoryEventKind : std::uint8_t {
  kAllocate,  ///< a tensor got a block
  kFree,      ///< a block went back to its pool
  kHold,      ///< its tensor is gone, another stream may still use the block: allocated, no longer
              ///< active
  kRecategorize,  ///< `bytes` of a live block now count as `category`, not as `before`
  kSegment,       ///< a segment was taken from HBM
  kSegmentFree,   ///< and given back
  kRetry,         ///< HBM could not give a segment: the cache was freed
  kOutOfMemory,   ///< `bytes` were refused
};
inline constexpr int kNumMemoryEventKinds = 8;
[[nodiscard]] std::string_view name(MemoryEventKind);

/// One event in 16 bytes. Addresses and sizes are multiples of 64 B and a core has less than 256
/// GiB.
struct MemoryEvent {
  static constexpr std::int64_t kUnit = 64;
  std::uint32_t op = 0;  ///< operations recorded before
  std::uint32_t address_units = 0;
  std::uint32_t size_units = 0;
  std::uint32_t scope : 20 = 0;  ///< interned; kManyScopes: one of those beyond
  std::uint32_t kind : 4 = 0;
  std::uint32_t category : 3 = 0;
  std::uint32_t before : 3 = 0;    ///< kRecategorize: what the bytes counted as
  std::uint32_t was_held : 1 = 0;  ///< kFree
  std::uint32_t small_pool : 1 = 0;

  static constexpr std::uint32_t kManyScopes = (1U << 20) - 1;
  [[nodiscard]] std::int64_t address() const { return address_units * kUnit; }
  [[nodiscard]] std::int64_t size() const { return size_units * kUnit; }
};
static_assert(sizeof(MemoryEvent) == 16);

/// The values of the allocator's three counters and of the categories.
struct MemoryTotals {
  std::int64_t reserved = 0, allocated = 0, active = 0;
  std::array<std::int64_t, kNumBufferCategories> by_category{};  ///< of `allocated`
  void apply(const MemoryEvent& event);
  bool operator==(const MemoryTotals&) const = default;
};

/// The latest events of one rank's memory, in the order of the program. When it is full the oldest
/// ones go, into `before()`.
class MemoryTimeline {
 public:
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 16;  ///< 1 MiB

  void add(const MemoryEvent& event) {
    if (capacity_ == 0) return;
    if (events_.size() < capacity_) {
      events_.push_back(event);
    } else {
      overwrite(event);
    }
  }
  /// Starts again with room for `events`; 0 stops recording.
  void restart(std::size_t events, const MemoryTotals& now);

  /// Oldest first.
  [[nodiscard]] std::vector<MemoryEvent> events() const;
  [[nodiscard]] const MemoryTotals& before() const { return before_; }
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  void overwrite(const MemoryEvent& event);

  std::vector<MemoryEvent> events_;
  std::size_t capacity_ = kDefaultCapacity, oldest_ = 0;
  std::int64_t dropped_ = 0;
  MemoryTotals before_;
};

}  // namespace trellis::device
