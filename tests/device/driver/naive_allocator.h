#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "device/driver/memory/caching_allocator.h"

namespace trellis::device::testing_support {

/// The caching allocator's contract written down as plainly as possible: every search looks at
/// every block.
class NaiveAllocator {
 public:
  explicit NaiveAllocator(std::int64_t capacity) : capacity_(capacity) {}

  std::optional<std::int64_t> allocate(std::int64_t bytes) {
    const bool small = bytes < kMiB;
    const std::int64_t size = size_class(bytes);
    if (!best_fit(small, size)) {
      const std::int64_t wanted = small ? 2 * kMiB
                                  : size < 10 * kMiB
                                      ? 20 * kMiB
                                      : (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      if (reserved + wanted <= capacity_) {
        add_segment(small, wanted);
      } else {
        ++retries;
        release_held();
        if (!best_fit(small, size)) {
          empty_cache();
          if (reserved + size > capacity_) return std::nullopt;
          add_segment(small, reserved + wanted <= capacity_ ? wanted : size);
        }
      }
    }
    const auto [base, index] = *best_fit(small, size);
    std::vector<Span>& spans = segments_.at(base).spans;
    const Span taken = spans[index];
    spans[index] = {taken.address, size, State::kUsed, 0};
    if (taken.size > size) {
      spans.insert(spans.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                   {taken.address + size, taken.size - size, State::kFree, ++clock_});
    }
    return taken.address;
  }

  void free(std::int64_t address, bool hold) {
    if (hold) {
      held_.push_back(address);
      return;
    }
    auto& [small, size, spans] = std::prev(segments_.upper_bound(address))->second;
    std::size_t i = 0;
    while (spans[i].address != address) ++i;
    spans[i].state = State::kFree;
    spans[i].freed = ++clock_;
    const auto join = [&](std::size_t first) {
      spans[first].size += spans[first + 1].size;
      spans[first].freed = clock_;
      spans.erase(spans.begin() + static_cast<std::ptrdiff_t>(first) + 1);
    };
    if (i + 1 < spans.size() && spans[i + 1].state == State::kFree) join(i);
    if (i > 0 && spans[i - 1].state == State::kFree) join(i - 1);
  }

  void release_held() {
    for (const std::int64_t address : std::exchange(held_, {})) free(address, false);
  }

  void empty_cache() {
    std::erase_if(segments_, [&](const auto& entry) {
      const Segment& segment = entry.second;
      const bool unused = segment.spans.size() == 1 && segment.spans[0].state == State::kFree;
      if (unused) reserved -= segment.size;
      return unused;
    });
  }

  std::int64_t reserved = 0, retries = 0;

 private:
  static constexpr std::int64_t kMiB = 1 << 20;
  enum class State { kFree, kUsed };
  struct Span {
    std::int64_t address, size;
    State state;
    std::uint64_t freed;  ///< later is larger
  };
  struct Segment {
    bool small;
    std::int64_t size;
    std::vector<Span> spans;
  };
  using Place = std::pair<std::int64_t, std::size_t>;

  std::optional<Place> best_fit(bool small, std::int64_t size) const {
    std::optional<Place> best;
    const Span* chosen = nullptr;
    for (const auto& [base, segment] : segments_) {
      for (std::size_t i = 0; i < segment.spans.size(); ++i) {
        const Span& span = segment.spans[i];
        if (segment.small != small || span.state != State::kFree || span.size < size) continue;
        if (chosen != nullptr &&
            (span.size > chosen->size || (span.size == chosen->size && span.freed < chosen->freed)))
          continue;
        chosen = &span;
        best = {base, i};
      }
    }
    return best;
  }

  void add_segment(bool small, std::int64_t size) {
    std::int64_t end = 0;
    for (const auto& [base, segment] : segments_) {
      if (base - end >= size) break;
      end = base + segment.size;
    }
    segments_[end] = {small, size, {{end, size, State::kFree, ++clock_}}};
    reserved += size;
  }

  std::int64_t capacity_;
  std::map<std::int64_t, Segment> segments_;
  std::vector<std::int64_t> held_;
  std::uint64_t clock_ = 0;
};

}  // namespace trellis::device::testing_support
