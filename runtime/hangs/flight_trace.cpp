#include "runtime/hangs/flight_trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include <c10/util/StringUtil.h>

#include "traces/perfetto_writer.h"

namespace trellis::runtime {
namespace {

Picoseconds since(std::int64_t ns, std::int64_t origin_ns) {
  return Picoseconds(std::max<std::int64_t>(0, ns - origin_ns) * 1000);
}

void add_entry(traces::Timeline& timeline, traces::TrackId track, const FlightEntry& entry,
               std::int64_t origin_ns) {
  const std::string source = entry.place.frames.empty() ? "" : describe(entry.place.frames.front());
  const std::vector<traces::Arg> args = {{"group", std::string_view(entry.group->label)},
                                         {"sequence", static_cast<std::int64_t>(entry.sequence)},
                                         {"bytes", size_in_bytes(entry.call)},
                                         {"step", entry.step},
                                         {"scopes", std::string_view(entry.place.scopes)},
                                         {"source", std::string_view(source)}};
  const Picoseconds begin = since(entry.began_ns, origin_ns);
  const std::string name = describe(entry.call);
  if (entry.ended_ns == 0) {
    timeline.open_slice(track, name, entry.group->axis, begin, args);
  } else {
    const Picoseconds end = std::max(begin, since(entry.ended_ns, origin_ns));
    timeline.slice(track, name, entry.group->axis, begin, end - begin, args);
  }
}

/// One write under a lock: processes of a job end at the same time.
void append(const std::filesystem::path& file, const std::string& bytes) {
  const int descriptor =
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  bool whole = descriptor >= 0 && ::flock(descriptor, LOCK_EX) == 0;
  for (std::size_t at = 0; whole && at < bytes.size();) {
    const ssize_t written = ::write(descriptor, bytes.data() + at, bytes.size() - at);
    whole = written > 0;
    at += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!whole) throw std::runtime_error(file.string() + ": " + std::strerror(error));
}

}  // namespace

traces::Timeline flight_timeline(const std::vector<FlightDump>& dumps, std::int64_t origin_ns) {
  traces::Timeline timeline;
  for (const FlightDump& dump : dumps) {
    const auto process = timeline.add_process(c10::str("rank ", dump.rank), dump.rank);
    const auto communications = timeline.add_track(process, "communications", 0);
    for (const FlightEntry& entry : dump.entries)
      add_entry(timeline, communications, entry, origin_ns);
    if (dump.now.empty()) continue;
    const auto now = timeline.add_track(process, "at the end", 1);
    timeline.open_slice(now, dump.now, "", since(dump.now_since_ns, origin_ns));
  }
  return timeline;
}

std::string append_flight_trace(const std::filesystem::path& file,
                                const std::vector<FlightDump>& dumps, std::int64_t origin_ns,
                                std::uint32_t process) {
  if (dumps.empty()) return "";
  try {
    std::ostringstream bytes;
    traces::write_perfetto(flight_timeline(dumps, origin_ns), bytes, process);
    append(file, bytes.str());
  } catch (const std::exception& error) {
    return c10::str("  trace of the end: not written: ", error.what());
  }
  return c10::str("  trace of the end: ", file.string(), " (open it at ui.perfetto.dev)");
}

}  // namespace trellis::runtime
