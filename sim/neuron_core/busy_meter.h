#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/sim.h"

namespace trellis::sim {

/// Collects when each track of a core was busy and sums up who worked alone. Tracks report their intervals in increasing order, but run
/// ahead of each other; sums are formed up to a frontier that no track can go back behind.
class BusyMeter {
 public:
  void reset(std::int64_t now, std::size_t kernels);

  /// REQUIRES: per track, begin ≥ the end of the last interval.
  void record(int track, std::uint32_t kernel, std::int64_t begin, std::int64_t end, std::int64_t bytes = 0) {
    note_kernel(track, kernel, begin, end, bytes);
    if (begin == end) return;
    auto& list = intervals_[static_cast<std::size_t>(track)];
    if (!list.empty() && list.back().end == begin) {
      list.back().end = end;
    } else {
      list.push_back({begin, end});
      ++buffered_;
    }
  }

  /// Lets the meter forget what lies before `frontier` when it holds much.
  void settle(std::int64_t frontier) {
    if (buffered_ > kSettleAbove && frontier > swept_ + kSettleStep) sweep(frontier);
  }

  /// Fills busy times, the three exclusive sums and the slices; times relative to the reset.
  void finish(SegmentTiming& timing);

 private:
  struct Interval {
    std::int64_t begin, end;
  };
  struct Slice {
    std::int64_t begin = -1, end = 0, busy = 0, bytes = 0;
  };
  static constexpr std::size_t kSettleAbove = 1 << 15;
  static constexpr std::int64_t kSettleStep = 20'000'000;

  void note_kernel(int track, std::uint32_t kernel, std::int64_t begin, std::int64_t end, std::int64_t bytes) {
    Slice& slice = slices_[kernel * kNumTracks + static_cast<std::size_t>(track)];
    if (slice.begin < 0) slice.begin = begin;
    if (end > slice.end) slice.end = end;
    slice.busy += end - begin;
    slice.bytes += bytes;
  }
  void sweep(std::int64_t frontier);
  void add(unsigned active, std::int64_t duration);

  std::int64_t base_ = 0;
  std::int64_t swept_ = 0;
  std::size_t buffered_ = 0;
  std::array<std::vector<Interval>, kNumTracks> intervals_;
  std::vector<Slice> slices_;  ///< [kernel][track]
  std::array<std::int64_t, kNumTracks> busy_{};
  std::int64_t tensor_active_ = 0, compute_only_ = 0, dma_only_ = 0;
};

}  // namespace trellis::sim
