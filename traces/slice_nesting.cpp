#include "traces/slice_nesting.h"

#include <algorithm>
#include <tuple>

namespace trellis::traces {
namespace {

struct OpenSlice {
  std::uint64_t slice;
  Picoseconds begin, end;
  bool never_ends;
};

class Nesting {
 public:
  explicit Nesting(std::vector<SliceEdge>& edges) : edges_(edges) {}

  /// Slices come sorted by start, longest first.
  void add(std::uint64_t index, const Timeline::Slice& slice) {
    close_until(slice.start);
    Picoseconds begin = slice.start;
    while (!open_.empty() && open_.back().end < slice.end()) {
      begin = open_.back().end;
      close_last();
    }
    if (!open_.empty())
      begin =
          std::max(begin, open_.back().begin);  // the enclosing one may have been clipped itself
    edges_.push_back({index, true, begin});
    open_.push_back({index, begin, std::max(begin, slice.end()), slice.is_open});
  }

  void finish() {
    while (!open_.empty()) close_last();
  }

 private:
  void close_until(Picoseconds time) {
    while (!open_.empty() && open_.back().end <= time) close_last();
  }
  void close_last() {
    if (!open_.back().never_ends) edges_.push_back({open_.back().slice, false, open_.back().end});
    open_.pop_back();
  }

  std::vector<SliceEdge>& edges_;
  std::vector<OpenSlice> open_;
};

}  // namespace

std::vector<std::vector<SliceEdge>> nested_edges(const Timeline& timeline) {
  std::vector<std::vector<std::uint64_t>> by_track(timeline.tracks().size());
  for (std::uint64_t i = 0; i < timeline.num_slices(); ++i)
    by_track[timeline.slice(i).track.v].push_back(i);
  std::vector<std::vector<SliceEdge>> out(by_track.size());
  for (std::size_t track = 0; track < by_track.size(); ++track) {
    const auto key = [&](std::uint64_t i) {
      const Timeline::Slice slice = timeline.slice(i);
      return std::tuple(slice.start.value, -slice.duration.value, i);
    };
    std::sort(by_track[track].begin(), by_track[track].end(),
              [&](std::uint64_t a, std::uint64_t b) { return key(a) < key(b); });
    Nesting nesting(out[track]);
    for (const std::uint64_t i : by_track[track]) nesting.add(i, timeline.slice(i));
    nesting.finish();
  }
  return out;
}

}  // namespace trellis::traces
