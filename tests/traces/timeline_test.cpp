#include "traces/timeline.h"

#include <array>

#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis::traces {
namespace {

using namespace trellis::literals;

class TimelineTest : public testing::Test {
 protected:
  Timeline timeline_{5};
  ProcessId process_ = timeline_.add_process("rank 0", 0);
  TrackId track_ = timeline_.add_track(process_, "Tensor", 0);
};

TEST_F(TimelineTest, KeepsWhatItIsGiven) {
  const std::array args{Arg{"bytes", std::int64_t{-7}}, Arg{"share", 0.25},
                        Arg{"op", std::string_view("mm")}};
  EXPECT_EQ(timeline_.slice(track_, "mm", "compute", 10_ps, 5_ps, args), 0u);
  EXPECT_EQ(timeline_.slice(track_, "mm", "compute", 20_ps, 5_ps), 1u);
  const Timeline::Slice slice = timeline_.slice(0);
  EXPECT_EQ(slice.track.v, track_.v);
  EXPECT_EQ(timeline_.text(slice.name), "mm");
  EXPECT_EQ(timeline_.text(slice.category), "compute");
  EXPECT_EQ(slice.start, 10_ps);
  EXPECT_EQ(slice.end(), 15_ps);
  ASSERT_EQ(slice.args.end - slice.args.begin, 3u);
  EXPECT_EQ(timeline_.text(timeline_.arg(0).key), "bytes");
  EXPECT_EQ(timeline_.arg(0).bits, -7);
  EXPECT_EQ(timeline_.arg(1).as_double(), 0.25);
  EXPECT_EQ(timeline_.text(static_cast<std::uint32_t>(timeline_.arg(2).bits)), "mm");
  EXPECT_EQ(timeline_.slice(1).args.begin, timeline_.slice(1).args.end);
  EXPECT_EQ(timeline_.num_texts(), 5u) << "equal texts are stored once";
}

TEST_F(TimelineTest, BeyondTheLimitEventsAreDroppedAndCountedAndSumsStayExact) {
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(timeline_.slice(track_, "a", "", Picoseconds(i * 10), 10_ps),
              static_cast<std::uint64_t>(i));
  timeline_.instant(track_, "i", "", 0_ps);
  EXPECT_EQ(timeline_.warning(), "");
  const std::uint64_t dropped = timeline_.slice(track_, "b", "", 40_ps, 10_ps);
  EXPECT_EQ(dropped, kDroppedEvent);
  timeline_.flow(0, dropped);
  timeline_.counter(timeline_.add_counter(process_, "HBM", "bytes"), 0_ps, 1);
  EXPECT_EQ(timeline_.num_slices(), 4u);
  EXPECT_TRUE(timeline_.flows().empty());
  EXPECT_TRUE(timeline_.samples().empty());
  EXPECT_EQ(timeline_.dropped(), 2u);
  EXPECT_EQ(timeline_.busy(track_), 50_ps);
  EXPECT_EQ(timeline_.warning(), "2 events dropped: the timeline holds at most 5 events");
}

TEST_F(TimelineTest, OrderIsBySortIndexThenCreation) {
  const ProcessId first = timeline_.add_process("first", -1);
  const TrackId b = timeline_.add_track(first, "b", 1);
  const TrackId a = timeline_.add_track(first, "a", 0);
  const TrackId second = timeline_.add_track(process_, "same index, later", 0);
  std::vector<std::uint32_t> order;
  for (const TrackId id : timeline_.tracks_in_order()) order.push_back(id.v);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{a.v, b.v, track_.v, second.v}));
  EXPECT_EQ(timeline_.processes_in_order()[0].v, first.v);
}

TEST_F(TimelineTest, NonsenseIsOurBug) {
  EXPECT_THROW(timeline_.slice(track_, "a", "", 0_ps, Picoseconds(-1)), Error);
  EXPECT_THROW(timeline_.slice(track_, "a", "", Picoseconds(-1), 1_ps), Error);
  EXPECT_THROW(timeline_.slice(TrackId{9}, "a", "", 0_ps, 1_ps), Error);
  EXPECT_THROW(timeline_.instant(TrackId{9}, "a", "", 0_ps), Error);
  EXPECT_THROW(timeline_.counter(CounterId{0}, 0_ps, 1), Error);
  EXPECT_THROW(timeline_.flow(0, 0), Error);
  EXPECT_THROW((void)timeline_.add_track(ProcessId{9}, "x", 0), Error);
  EXPECT_EQ(timeline_.busy(track_), 0_ps);
}

}  // namespace
}  // namespace trellis::traces
