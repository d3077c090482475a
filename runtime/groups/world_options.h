#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "runtime/calls/flight_dump.h"

namespace trellis::runtime {

class DevicePlugin;
class ProcessLink;

struct WorldOptions {
  int world_size = 1;
  std::string device_type = "cpu";       ///< "cpu" or the plugin's device type
  const DevicePlugin* plugin = nullptr;  ///< needed unless "cpu"
  std::string backend;  ///< c10d backend of the plugin for the device's tensors; "": the host's own
  int host_threads = 0;  ///< ranks that may run at the same time; 0: as many as the host has cores
  bool shape_only = false;  ///< communications carry no bytes
  /// Ascending ranks that run; the others do what one of these does, and no one waits for them.
  /// Empty: all. Needs shape_only.
  std::vector<int> representatives;
  bool replay = false;  ///< the plugin may be asked to repeat_period. Needs shape_only.
  std::chrono::milliseconds timeout{
      100000};  ///< a rank that is later than this at a communication is named (exit code 4)
  /// The other processes of the job, which run as many ranks each, in order; one world per link.
  /// Null: all ranks run in this process.
  ProcessLink* link = nullptr;
  /// Called when the ranks of this process have ended and none of the job has failed, as long as
  /// `link` carries messages.
  std::function<void()> before_leave = {};
  bool exit_when_stuck = false;  ///< a rank that goes on after a hang is reported and ends the
                                 ///< process (exit code 4): see HangWatch
  FlightDumpWriter dump = {};  ///< called once when ranks fail, hang or crash: keeps what they did
                               ///< last; what it returns is added to the error's text
};

}  // namespace trellis::runtime
