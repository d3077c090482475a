#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/calls/call_place.h"
#include "runtime/calls/comm_call.h"
#include "runtime/calls/transfer.h"

namespace trellis::runtime {

/// A communication of one rank, as its flight recorder kept it.
struct FlightEntry {
  CommCall call;
  CallPlace place;
  std::shared_ptr<const GroupInfo> group;
  int sender = -1, receiver = -1;  ///< global ranks of a message; -1: of a collective
  std::uint64_t sequence = 0;  ///< in the group; of a message: from this sender to this receiver
  std::int64_t input_elements = 0, output_elements = 0;
  std::int64_t step = -1;     ///< -1: before the first
  std::int64_t in_step = 0;   ///< n-th communication of the rank in that step
  std::int64_t began_ns = 0;  ///< since the Unix epoch, on the host's clock
  std::int64_t ended_ns = 0;  ///< 0: it did not complete
};

/// The last communications of a rank, for a file that other programs read.
struct FlightDump {
  int rank = 0;
  std::vector<FlightEntry> entries;                      ///< oldest first
  std::vector<std::shared_ptr<const GroupInfo>> groups;  ///< those that the rank made
  std::string now;                ///< what it did when its world was over; "": it had ended
  std::int64_t now_since_ns = 0;  ///< since when
};

/// Keeps the dumps of the ranks of this process and returns what a user is to read about it; "":
/// nothing. Throws nothing.
using FlightDumpWriter = std::function<std::string(const std::vector<FlightDump>& dumps)>;

/// Since the Unix epoch, on the host's clock.
[[nodiscard]] std::int64_t host_time_ns();

}  // namespace trellis::runtime
