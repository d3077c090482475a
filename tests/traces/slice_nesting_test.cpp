#include "traces/slice_nesting.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace trellis::traces {
namespace {

using namespace trellis::literals;

/// "a(0 b(2 b)5 a)10": what the edges of the only track look like.
std::string drawn(const Timeline& timeline) {
  std::string out;
  const auto edges = nested_edges(timeline);
  for (const SliceEdge& edge : edges.at(0)) {
    if (!out.empty()) out += ' ';
    out += timeline.text(timeline.slice(edge.slice).name) + (edge.begin ? "(" : ")") +
           std::to_string(edge.at.value);
  }
  return out;
}

Timeline one_track() {
  Timeline timeline;
  (void)timeline.add_track(timeline.add_process("p", 0), "t", 0);
  return timeline;
}

TEST(SliceNesting, DisjointAndNestedStayAsTheyAre) {
  Timeline timeline = one_track();
  timeline.slice(TrackId{0}, "c", "", 10_ps, 2_ps);
  timeline.slice(TrackId{0}, "b", "", 2_ps, 3_ps);
  timeline.slice(TrackId{0}, "a", "", 0_ps, 10_ps);
  EXPECT_EQ(drawn(timeline), "a(0 b(2 b)5 a)10 c(10 c)12");
}

TEST(SliceNesting, AnOpenSliceEnclosesWhatFollowsAndHasNoEnd) {
  Timeline timeline = one_track();
  timeline.slice(TrackId{0}, "b", "", 8_ps, 2_ps);
  timeline.open_slice(TrackId{0}, "a", "", 7_ps);
  timeline.open_slice(TrackId{0}, "c", "", 12_ps);
  EXPECT_EQ(drawn(timeline), "a(7 b(8 b)10 c(12");
}

TEST(SliceNesting, EqualStartLongestIsOutside) {
  Timeline timeline = one_track();
  timeline.slice(TrackId{0}, "short", "", 0_ps, 3_ps);
  timeline.slice(TrackId{0}, "long", "", 0_ps, 5_ps);
  EXPECT_EQ(drawn(timeline), "long(0 short(0 short)3 long)5");
}

TEST(SliceNesting, CrossingIsClippedToTheEarlierEnd) {
  Timeline timeline = one_track();
  timeline.slice(TrackId{0}, "a", "", 0_ps, 10_ps);
  timeline.slice(TrackId{0}, "b", "", 5_ps, 10_ps);
  EXPECT_EQ(drawn(timeline), "a(0 a)10 b(10 b)15");
}

TEST(SliceNesting, ZeroLengthSlices) {
  Timeline timeline = one_track();
  timeline.slice(TrackId{0}, "x", "", 5_ps, 0_ps);
  timeline.slice(TrackId{0}, "y", "", 5_ps, 0_ps);
  timeline.slice(TrackId{0}, "a", "", 0_ps, 5_ps);
  EXPECT_EQ(drawn(timeline), "a(0 a)5 x(5 x)5 y(5 y)5");
}

bool cross(const Timeline::Slice& a, const Timeline::Slice& b) {
  return (a.start < b.start && b.start < a.end() && a.end() < b.end()) ||
         (b.start < a.start && a.start < b.end() && b.end() < a.end());
}

bool any_cross(const Timeline& timeline) {
  for (std::size_t i = 0; i < timeline.num_slices(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (cross(timeline.slice(i), timeline.slice(j))) return true;
    }
  }
  return false;
}

bool is_end_of_some_slice(const Timeline& timeline, Picoseconds at) {
  for (std::size_t i = 0; i < timeline.num_slices(); ++i) {
    if (timeline.slice(i).end() == at) return true;
  }
  return false;
}

/// Every slice begins and ends once, edges never go back in time, an end closes the slice that is
/// open, a begin is exact or clipped to an end; and nothing is clipped when nothing crosses.
void expect_well_nested(const Timeline& timeline) {
  const bool exact = !any_cross(timeline);
  std::vector<std::uint64_t> open;
  std::vector<int> begins(timeline.num_slices(), 0);
  Picoseconds now;
  const auto edges = nested_edges(timeline);
  for (const SliceEdge& edge : edges[0]) {
    ASSERT_GE(edge.at, now);
    now = edge.at;
    const Timeline::Slice slice = timeline.slice(edge.slice);
    if (edge.begin) {
      ++begins[edge.slice];
      open.push_back(edge.slice);
      ASSERT_TRUE(edge.at == slice.start ||
                  (!exact && edge.at > slice.start && is_end_of_some_slice(timeline, edge.at)));
    } else {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), edge.slice);
      open.pop_back();
      ASSERT_TRUE(edge.at == slice.end() || (!exact && edge.at > slice.end()));
    }
  }
  ASSERT_TRUE(open.empty());
  ASSERT_EQ(begins, std::vector<int>(timeline.num_slices(), 1));
}

TEST(SliceNesting, RandomSlicesAlwaysNest) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000 && !HasFatalFailure(); ++round) {
    Timeline timeline = one_track();
    const int count = 1 + static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i)
      timeline.slice(TrackId{0}, "s", "", Picoseconds(random() % 20), Picoseconds(random() % 10));
    expect_well_nested(timeline);
  }
}

/// Slices that were made nested, as engines make them, come out untouched, whatever the order in
/// which they were added.
TEST(SliceNesting, ProperInputIsDrawnExactly) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::pair<std::int64_t, std::int64_t>> slices;
    for (std::int64_t at = 0; at < 200;) {
      const std::int64_t length = 4 + static_cast<std::int64_t>(random() % 20);
      slices.emplace_back(at, length);
      slices.emplace_back(at + 1, length / 2 - 1);
      slices.emplace_back(at + length / 2, length - length / 2);
      at += length + static_cast<std::int64_t>(random() % 2);
    }
    std::shuffle(slices.begin(), slices.end(), random);
    Timeline timeline = one_track();
    for (const auto& [start, duration] : slices)
      timeline.slice(TrackId{0}, "s", "", Picoseconds(start), Picoseconds(duration));
    const auto edges = nested_edges(timeline);
    for (const SliceEdge& edge : edges[0]) {
      const Timeline::Slice slice = timeline.slice(edge.slice);
      ASSERT_EQ(edge.at, edge.begin ? slice.start : slice.end());
    }
  }
}

}  // namespace
}  // namespace trellis::traces
