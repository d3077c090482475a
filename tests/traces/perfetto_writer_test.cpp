#include "traces/perfetto_writer.h"

#include <array>
#include <sstream>

#include <gtest/gtest.h>

namespace trellis::traces {
namespace {

std::string bytes_of(const Timeline& timeline) {
  std::ostringstream out;
  write_perfetto(timeline, out);
  return out.str();
}

/// 100 000 slices as a training step has them: a few hundred names, two arguments each,
/// milliseconds of time.
Timeline large() {
  Timeline timeline;
  const ProcessId process = timeline.add_process("rank 0", 0);
  std::vector<TrackId> tracks;
  for (int i = 0; i < 20; ++i)
    tracks.push_back(timeline.add_track(process, "track " + std::to_string(i), i));
  for (std::int64_t i = 0; i < 100'000; ++i) {
    const std::array args{Arg{"kernel", i % 1000}, Arg{"bytes", i * 64}};
    timeline.slice(tracks[static_cast<std::size_t>(i % 20)], "kernel_" + std::to_string(i % 300),
                   "compute", Picoseconds(i * 1'000'003), Picoseconds(900'007), args);
  }
  return timeline;
}

// The meaning of the bytes is tested with Perfetto's own classes in read_by_perfetto.py.
TEST(PerfettoWriter, IsDeterministicAndCompact) {
  const Timeline timeline = large();
  const std::string bytes = bytes_of(timeline);
  EXPECT_EQ(bytes, bytes_of(timeline));
  EXPECT_LE(bytes.size(), 10'000'000u);
  RecordProperty("bytes_per_slice", static_cast<int>(bytes.size() / 100'000));
}

TEST(PerfettoWriter, EmptyTimelineIsStillATrace) { EXPECT_FALSE(bytes_of(Timeline()).empty()); }

}  // namespace
}  // namespace trellis::traces
