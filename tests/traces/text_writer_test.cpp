#include "traces/text_writer.h"

#include <array>
#include <sstream>

#include <gtest/gtest.h>

namespace trellis::traces {
namespace {

using namespace trellis::literals;

std::string text_of(const Timeline& timeline) {
  std::ostringstream out;
  write_text(timeline, out);
  return out.str();
}

TEST(TextWriter, ASliceThatDidNotEndIsOpen) {
  Timeline timeline;
  const TrackId track = timeline.add_track(timeline.add_process("rank 0", 0), "comm", 0);
  timeline.open_slice(track, "barrier", "dp", 7_ps);
  timeline.slice(track, "inner", "", 8_ps, 2_ps);
  EXPECT_EQ(text_of(timeline),
            "slice 7 open \"rank 0\"/\"comm\" \"barrier\" cat=\"dp\"\n"
            "slice 8 +2 \"rank 0\"/\"comm\" \"inner\"\n");
  EXPECT_EQ(timeline.busy(track), 2_ps);
}

TEST(TextWriter, OneEventALineInOrder) {
  Timeline timeline;
  const ProcessId late = timeline.add_process("rank 1", 1);
  const ProcessId early = timeline.add_process("rank 0", 0);
  const TrackId vector = timeline.add_track(late, "Vector", 1);
  const TrackId tensor = timeline.add_track(early, "Tensor", 0);
  const CounterId hbm = timeline.add_counter(early, "HBM", "bytes");
  timeline.counter(hbm, 2000_ps, 1 << 20);
  timeline.counter(hbm, 2000_ps, 5);
  const std::uint64_t add = timeline.slice(vector, "add", "", 3500_ps, 100_ps);
  const std::array args{Arg{"bytes", std::int64_t{4096}}, Arg{"share", 0.1},
                        Arg{"at", std::string_view("a\"b\\c\nd")}};
  const std::uint64_t mm = timeline.slice(tensor, "mm", "compute", 2000_ps, 1500_ps, args);
  timeline.slice(tensor, "inner", "", 2000_ps, 10_ps);
  timeline.flow(mm, add);
  timeline.instant(tensor, "cut", "graph", 3500_ps);
  EXPECT_EQ(text_of(timeline),
            "slice 2000 +1500 \"rank 0\"/\"Tensor\" \"mm\" cat=\"compute\" bytes=4096 share=0.1 "
            "at=\"a\\\"b\\\\c\\nd\"\n"
            "slice 2000 +10 \"rank 0\"/\"Tensor\" \"inner\"\n"
            "flow 2000 \"rank 0\"/\"Tensor\" \"mm\" -> 3500 \"rank 1\"/\"Vector\" \"add\"\n"
            "counter 2000 \"rank 0\"/\"HBM\" 1048576 bytes\n"
            "counter 2000 \"rank 0\"/\"HBM\" 5 bytes\n"
            "instant 3500 \"rank 0\"/\"Tensor\" \"cut\" cat=\"graph\"\n"
            "slice 3500 +100 \"rank 1\"/\"Vector\" \"add\"\n");
}

TEST(TextWriter, OrderOfAddingDoesNotMatter) {
  const auto build = [](bool reversed) {
    Timeline timeline;
    const TrackId track = timeline.add_track(timeline.add_process("p", 0), "t", 0);
    for (int i = 0; i < 10; ++i) {
      const int k = reversed ? 9 - i : i;
      timeline.slice(track, "s" + std::to_string(k), "", Picoseconds(k / 3), 1_ps);
    }
    return text_of(timeline);
  };
  EXPECT_EQ(build(false), build(true));
}

TEST(TextWriter, DroppedEventsAreReported) {
  Timeline timeline(1);
  const TrackId track = timeline.add_track(timeline.add_process("p", 0), "t", 0);
  for (int i = 0; i < 3; ++i) timeline.slice(track, "s", "", 0_ps, 1_ps);
  EXPECT_EQ(text_of(timeline),
            "warning 2 events dropped: the timeline holds at most 1 events\n"
            "slice 0 +1 \"p\"/\"t\" \"s\"\n");
}

}  // namespace
}  // namespace trellis::traces
