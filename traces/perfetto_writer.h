#pragma once

#include <cstdint>
#include <iosfwd>

#include "traces/timeline.h"

namespace trellis::traces {

/// Perfetto's TrackEvent protobuf, for ui.perfetto.dev and its trace processor. Perfetto counts in
/// nanoseconds, so times are rounded down for display and every slice and instant carries its exact
/// `start_ps` (and `duration_ps`) as arguments. The same timeline gives the same bytes. Further
/// timelines can follow in the same file, each as another `part`: 1, 2, …; they are shown below.
void write_perfetto(const Timeline& timeline, std::ostream& out, std::uint32_t part = 0);

}  // namespace trellis::traces
