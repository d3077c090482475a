#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/calls/flight_dump.h"
#include "traces/timeline.h"

namespace trellis::runtime {

/// The last communications of ranks on the host's clock, from `origin_ns` (as host_time_ns()) on: a
/// slice for each, open where it did not complete, and below them an open slice with what the rank
/// did when its world was over.
[[nodiscard]] traces::Timeline flight_timeline(const std::vector<FlightDump>& dumps,
                                               std::int64_t origin_ns);

/// Appends flight_timeline() to a Perfetto file, in which each process of a job is a part. Returns
/// what a user is to read about it: where it is, or why there is none; "": there are no dumps.
[[nodiscard]] std::string append_flight_trace(const std::filesystem::path& file,
                                              const std::vector<FlightDump>& dumps,
                                              std::int64_t origin_ns, std::uint32_t process);

}  // namespace trellis::runtime
