#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/job/job.h"

namespace trellis::sim {

/// Collects when each track of a core was busy and sums up who worked alone. Tracks report their
/// intervals in increasing order, but run ahead of each other; sums are formed up to a frontier
/// that no track can go back before.
class BusyMeter {
 public:
  void reset(std::int64_t now, std::size_t kernels);
  /// Sets whether `finish` also lists every uninterrupted stretch of work. REQUIRES: no `repeat`
  /// while it does.
  void keep_pieces(bool keep) { keep_pieces_ = keep; }

  /// REQUIRES: per track, begin ≥ the end of the last interval.
  void record(int track, std::uint32_t kernel, std::int64_t begin, std::int64_t end,
              std::int64_t bytes = 0) {
    note_kernel(track, kernel, begin, end, bytes);
    if (begin == end) return;
    sums_[static_cast<std::size_t>(track)] += end - begin;
    if (keep_pieces_) note_piece(track, kernel, begin, end, bytes);
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

  // For the fast-forward of loops. No track reports anything before `now` any more.
  struct Totals {
    std::array<std::int64_t, kNumTracks + 3> sums{};
    std::uint32_t first_kernel = 0;
    struct Slice {
      std::int64_t begin = -1, end = 0, busy = 0, bytes = 0;
    };
    std::vector<Slice> slices;  ///< [kernel - first_kernel][track]
  };
  /// Reads the totals counted up to `now`; slices of the kernels [first_kernel, end_kernel).
  void read(Totals& totals, std::int64_t now, std::uint32_t first_kernel, std::uint32_t end_kernel);
  /// Counts `times` more repetitions, `period` long each, of what has happened since `since`; later
  /// reports are shifted by their time. REQUIRES: nothing since then but kernels that `since`
  /// holds.
  void repeat(const Totals& since, std::int64_t now, std::int64_t times, std::int64_t period);
  /// The intervals that reach beyond `now`, relative to it.
  void append_state(std::vector<std::int64_t>& out, std::int64_t now) const;

  /// Fills busy times, the three exclusive sums and the slices; times relative to the reset.
  void finish(SegmentTiming& timing);

 private:
  struct Interval {
    std::int64_t begin, end;
  };
  using Slice = Totals::Slice;
  static constexpr std::size_t kSettleAbove = 1 << 15;
  static constexpr std::int64_t kSettleStep = 20'000'000;

  void note_kernel(int track, std::uint32_t kernel, std::int64_t begin, std::int64_t end,
                   std::int64_t bytes) {
    Slice& slice = slices_[kernel * kNumTracks + static_cast<std::size_t>(track)];
    if (slice.begin < 0) slice.begin = begin + skipped_;
    if (end + skipped_ > slice.end) slice.end = end + skipped_;
    slice.busy += end - begin;
    slice.bytes += bytes;
  }
  void note_piece(int track, std::uint32_t kernel, std::int64_t begin, std::int64_t end,
                  std::int64_t bytes);
  void sweep(std::int64_t frontier);
  void drop_swept();
  void add(unsigned active, std::int64_t duration);

  std::int64_t base_ = 0;
  std::int64_t swept_ = 0;
  std::int64_t skipped_ = 0;  ///< by `repeat`: slices are in the time that would have passed
  std::size_t buffered_ = 0;
  std::array<std::vector<Interval>, kNumTracks> intervals_;
  std::vector<Slice> slices_;  ///< [kernel][track]
  bool keep_pieces_ = false;
  std::array<std::vector<KernelSlice>, kNumTracks> pieces_;
  enum Sum : std::size_t { kTensorActive = kNumTracks, kComputeOnly, kDmaOnly };
  std::array<std::int64_t, kNumTracks + 3>
      sums_{};  ///< busy time of each track, then the exclusive sums
};

}  // namespace trellis::sim
