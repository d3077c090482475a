#include "device/driver/memory/caching_allocator.h"

#include <random>

#include <gtest/gtest.h>

#include "tests/device/driver/naive_allocator.h"

namespace trellis::device::caching_allocator_test {
namespace {

using testing_support::NaiveAllocator;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(SizeClass, FourClassesPerDoublingFrom256BytesTo16MiB) {
  EXPECT_EQ(size_class(0), 0);
  EXPECT_EQ(size_class(1), 256);
  EXPECT_EQ(size_class(257), 320);
  EXPECT_EQ(size_class(1025), 1280);
  EXPECT_EQ(size_class(kMiB + 1), kMiB + (1 << 18));
  EXPECT_EQ(size_class(16 * kMiB + 1), 16 * kMiB + 512);
  std::int64_t last = 0;
  for (std::int64_t bytes = 1; bytes < 40 * kMiB; bytes += bytes / 7 + 1) {
    const std::int64_t rounded = size_class(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded, std::max<std::int64_t>(256, bytes + bytes / 4 + 1));
    EXPECT_GE(rounded, last) << "monotonic";
    EXPECT_EQ(size_class(rounded), rounded) << "idempotent";
    last = rounded;
  }
}

/// An allocator with what a program needs around it.
struct Memory {
  explicit Memory(std::int64_t capacity) : allocator(capacity, timeline) {
    timeline.restart(std::size_t{1} << 22, {});
  }
  MemoryBlock* allocate(std::int64_t bytes, BufferCategory category = BufferCategory::kTemporary) {
    return allocator.allocate({.bytes = bytes, .category = category});
  }
  const PoolStats& stats() { return allocator.stats().all; }
  MemoryTimeline timeline;
  CachingAllocator allocator;
};

/// Blocks tile their segments in order, free neighbours are merged, segments do not overlap, and
/// the counters are what the blocks add up to.
void expect_sound(const CachingAllocator& allocator) {
  PoolStats seen;
  std::array<std::int64_t, kNumBufferCategories> by_category{};
  std::int64_t end = 0;
  for (const auto& [address, segment] : allocator.segments()) {
    ASSERT_EQ(address, segment.address);
    ASSERT_GE(address, end) << "segments overlap";
    end = address;
    const MemoryBlock* last = nullptr;
    for (const MemoryBlock* block = segment.first; block != nullptr;
         last = block, block = block->after) {
      ASSERT_EQ(block->address, end);
      ASSERT_GT(block->size, 0);
      ASSERT_EQ(block->address % MemoryEvent::kUnit, 0);
      ASSERT_EQ(block->before, last);
      ASSERT_EQ(block->segment, &segment);
      end += block->size;
      if (block->state == MemoryBlock::State::kFree) {
        ASSERT_FALSE(last != nullptr && last->state == MemoryBlock::State::kFree)
            << "two free neighbours";
        continue;
      }
      seen.allocated_bytes.current += block->size;
      by_category[static_cast<std::size_t>(block->category)] += block->size;
      if (block->state == MemoryBlock::State::kActive) {
        seen.active_bytes.current += block->size;
        seen.requested_bytes.current += block->requested;
        ASSERT_EQ(block->size, size_class(block->requested));
      }
    }
    ASSERT_EQ(end, segment.address + segment.size);
    seen.reserved_bytes.current += segment.size;
  }
  const AllocatorStats& stats = allocator.stats();
  ASSERT_EQ(stats.all.reserved_bytes.current, seen.reserved_bytes.current);
  ASSERT_EQ(stats.all.allocated_bytes.current, seen.allocated_bytes.current);
  ASSERT_EQ(stats.all.active_bytes.current, seen.active_bytes.current);
  ASSERT_EQ(stats.all.requested_bytes.current, seen.requested_bytes.current);
  ASSERT_EQ(stats.by_category, by_category);
  ASSERT_GE(stats.all.reserved_bytes.current, stats.all.allocated_bytes.current);
  ASSERT_GE(stats.all.allocated_bytes.current, stats.all.active_bytes.current);
  ASSERT_LE(stats.all.reserved_bytes.current, allocator.capacity());
}

/// Sizes as programs have them: mostly small, some huge.
std::int64_t random_size(std::mt19937_64& random) {
  const int log = std::uniform_int_distribution<int>(0, 25)(random);
  return std::uniform_int_distribution<std::int64_t>(1, std::int64_t{1} << log)(random);
}

/// A random program on the allocator and on the naive one.
class RandomProgram {
 public:
  RandomProgram(std::uint64_t seed, std::int64_t capacity)
      : random_(seed), memory(capacity), naive(capacity) {}

  void step() {
    const int choice = std::uniform_int_distribution<int>(0, 999)(random_);
    if (choice < 520 || live_.empty()) {
      allocate();
    } else if (choice < 970) {
      release();
    } else if (choice < 980) {
      allocator().recategorize(*live_[any()],
                               static_cast<BufferCategory>(choice % kNumBufferCategories), 0);
    } else if (choice < 995) {
      allocator().release_held(0);
      naive.release_held();
    } else {
      allocator().empty_cache(0);
      naive.empty_cache();
    }
  }
  void release_all() {
    while (!live_.empty()) release();
    allocator().release_held(0);
    naive.release_held();
  }
  CachingAllocator& allocator() { return memory.allocator; }

 private:
  void allocate() {
    const std::int64_t bytes = random_size(random_);
    MemoryBlock* const block =
        memory.allocate(bytes, static_cast<BufferCategory>(bytes % kNumBufferCategories));
    const std::optional<std::int64_t> expected = naive.allocate(bytes);
    ASSERT_EQ(block != nullptr, expected.has_value()) << bytes;
    if (block == nullptr) return;
    ASSERT_EQ(block->address, *expected) << bytes;
    live_.push_back(block);
  }
  void release() {
    std::swap(live_[any()], live_.back());
    MemoryBlock& block = *live_.back();
    live_.pop_back();
    block.used_by_stream = random_() % 8 == 0;
    const std::int64_t address = block.address;
    const bool hold = block.used_by_stream;
    allocator().free(block, 0);
    naive.free(address, hold);
  }
  std::size_t any() {
    return std::uniform_int_distribution<std::size_t>(0, live_.size() - 1)(random_);
  }

  std::mt19937_64 random_;
  std::vector<MemoryBlock*> live_;

 public:
  Memory memory;
  NaiveAllocator naive;
};

class RandomPrograms : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(RandomPrograms, EqualTheNaiveAllocatorAndStaySound) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(seed, GetParam() * kMiB);
    for (int i = 0; i < 1500; ++i) {
      program.step();
      if (HasFatalFailure()) return;
      if (i % 10 == 0) expect_sound(program.allocator());
      if (HasFatalFailure()) return;
      ASSERT_EQ(program.allocator().stats().all.reserved_bytes.current, program.naive.reserved);
      ASSERT_EQ(program.allocator().stats().num_alloc_retries, program.naive.retries);
    }
    program.release_all();
    expect_sound(program.allocator());
    program.allocator().empty_cache(0);
    EXPECT_TRUE(program.allocator().segments().empty()) << "an empty memory keeps no segment";
    EXPECT_EQ(program.memory.stats().reserved_bytes.current, 0);
  }
}

/// The statistics, from the recorded events alone.
struct Replay {
  MemoryStat reserved, allocated, active;
  std::array<std::int64_t, kNumBufferCategories> by_category{};
  std::int64_t retries = 0, ooms = 0, frees = 0, requests = 0;

  explicit Replay(const std::vector<MemoryEvent>& events) {
    for (const MemoryEvent& event : events) see(event, static_cast<MemoryEventKind>(event.kind));
  }
  void see(const MemoryEvent& event, MemoryEventKind kind) {
    const std::int64_t size = event.size();
    if (kind == MemoryEventKind::kSegment) reserved.increase(size);
    if (kind == MemoryEventKind::kSegmentFree) reserved.decrease(size);
    if (kind == MemoryEventKind::kAllocate)
      allocated.increase(size), active.increase(size), by_category[event.category] += size,
          ++requests;
    if (kind == MemoryEventKind::kHold) active.decrease(size), ++frees;
    if (kind == MemoryEventKind::kFree) {
      allocated.decrease(size), by_category[event.category] -= size;
      if (event.was_held == 0) active.decrease(size), ++frees;
    }
    if (kind == MemoryEventKind::kRecategorize)
      by_category[event.before] -= size, by_category[event.category] += size;
    if (kind == MemoryEventKind::kRetry) ++retries;
    if (kind == MemoryEventKind::kOutOfMemory) ++ooms, ++requests;
  }
};

void expect_equal(const MemoryStat& a, const MemoryStat& b) {
  EXPECT_EQ(a.current, b.current);
  EXPECT_EQ(a.peak, b.peak);
  EXPECT_EQ(a.allocated, b.allocated);
  EXPECT_EQ(a.freed, b.freed);
}

TEST_P(RandomPrograms, StatisticsEqualAReplayOfTheEvents) {
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    RandomProgram program(seed, GetParam() * kMiB);
    for (int i = 0; i < 3000; ++i) program.step();
    ASSERT_EQ(program.memory.timeline.dropped(), 0);
    const Replay replay(program.memory.timeline.events());
    const AllocatorStats& stats = program.allocator().stats();
    expect_equal(replay.reserved, stats.all.reserved_bytes);
    expect_equal(replay.allocated, stats.all.allocated_bytes);
    expect_equal(replay.active, stats.all.active_bytes);
    EXPECT_EQ(replay.by_category, stats.by_category);
    EXPECT_EQ(replay.retries, stats.num_alloc_retries);
    EXPECT_EQ(replay.ooms, stats.num_ooms);
    EXPECT_EQ(replay.frees, stats.num_tensor_frees);
    EXPECT_EQ(replay.requests, stats.allocation_requests);
    EXPECT_GT(stats.num_tensor_frees, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(MiB, RandomPrograms, testing::Values(16, 64, 256, 24 << 10),
                         testing::PrintToStringParamName());

TEST(CachingAllocator, PoolsAreSeparateAndSegmentsAreShared) {
  Memory memory(24 * 1024 * kMiB);
  const MemoryBlock* const a = memory.allocate(100);
  const MemoryBlock* const b = memory.allocate(kMiB - 1);
  EXPECT_EQ(memory.stats().reserved_bytes.current, 2 * kMiB)
      << "small requests share a segment of 2 MiB";
  EXPECT_EQ(b->address, a->address + 256);
  memory.allocate(kMiB);
  memory.allocate(9 * kMiB);
  EXPECT_EQ(memory.stats().reserved_bytes.current, 22 * kMiB)
      << "large ones below 10 MiB one of 20 MiB";
  memory.allocate(31 * kMiB);
  EXPECT_EQ(memory.stats().reserved_bytes.current, 54 * kMiB)
      << "others get their own, a multiple of 2 MiB";
  EXPECT_EQ(memory.allocator.stats().pools[0].segments.current, 1);
  EXPECT_EQ(memory.allocator.stats().pools[1].segments.current, 2);
}

TEST(CachingAllocator, TheCacheIsFreedBeforeARequestFails) {
  Memory memory(64 * kMiB);
  memory.allocator.free(*memory.allocate(40 * kMiB), 0);
  EXPECT_EQ(memory.stats().reserved_bytes.current, 40 * kMiB) << "cached";
  MemoryBlock* const big = memory.allocate(60 * kMiB);
  ASSERT_NE(big, nullptr);
  EXPECT_EQ(memory.allocator.stats().num_alloc_retries, 1);
  EXPECT_EQ(memory.allocator.stats().num_ooms, 0);
  EXPECT_EQ(memory.allocate(5 * kMiB), nullptr);
  EXPECT_EQ(memory.allocator.stats().num_ooms, 1);
  EXPECT_NE(memory.allocate(3 * kMiB), nullptr)
      << "a segment of 20 MiB does not fit, the request does";
}

TEST(CachingAllocator, ABlockThatAStreamUsesStaysAllocatedUntilItIsReleased) {
  Memory memory(64 * kMiB);
  MemoryBlock* const block = memory.allocate(1000);
  block->used_by_stream = true;
  memory.allocator.free(*block, 0);
  EXPECT_EQ(memory.stats().active_bytes.current, 0);
  EXPECT_EQ(memory.stats().allocated_bytes.current, 1024);
  EXPECT_NE(memory.allocate(1000)->address, block->address);
  memory.allocator.release_held(0);
  EXPECT_EQ(memory.stats().allocated_bytes.current, 1024);
}

TEST(MemoryTimeline, AFullOneKeepsTheTotalsOfWhatItDropped) {
  MemoryTimeline all, few;
  all.restart(1 << 20, {});
  few.restart(100, {});
  CachingAllocator one(256 * kMiB, all), other(256 * kMiB, few);
  std::mt19937_64 random(1);
  std::vector<std::pair<MemoryBlock*, MemoryBlock*>> live;
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t bytes = random_size(random) / 8 + 1;
    live.emplace_back(one.allocate({.bytes = bytes}), other.allocate({.bytes = bytes}));
    if (live.size() < 20) continue;
    std::swap(live[random() % live.size()], live.back());
    one.free(*live.back().first, 0);
    other.free(*live.back().second, 0);
    live.pop_back();
  }
  const auto totals = [](const MemoryTimeline& timeline) {
    MemoryTotals now = timeline.before();
    for (const MemoryEvent& event : timeline.events()) now.apply(event);
    return now;
  };
  EXPECT_EQ(all.dropped(), 0);
  EXPECT_GT(few.dropped(), 1000);
  EXPECT_EQ(few.events().size(), 100u);
  EXPECT_EQ(totals(few), totals(all));
  EXPECT_EQ(totals(few).allocated, one.stats().all.allocated_bytes.current);
}

}  // namespace
}  // namespace trellis::device::caching_allocator_test
