#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/config/run_source.h"
#include "trainer/requests/device_source.h"

namespace trellis::trainer {

/// Name of a trace in the run's folder, by its format; kineto and chakra are folders.
[[nodiscard]] inline std::string trace_name(const std::string& format) {
  if (format == "perfetto") return "trace.pftrace";
  return format == "text" ? "trace.txt" : "trace." + format;
}

/// Arguments of `trellis train` and `trellis simulate`. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct RunRequest : RunSource, DeviceSource {
  RunRequest() { device = "neuron"; }
  std::vector<std::string> command_line;  ///< for cmd-args.log
  std::vector<std::string> slow;          ///< simulate: "core:RANK=FACTOR", "link:NAME=FACTOR"
  bool shape_only = false;                ///< simulate
  bool resume = false;              ///< train: exp_manager.resume_if_exists is among the overrides
  bool test = false;                ///< after training, a pass over the test data
  std::vector<std::string> faults;  ///< train: see FaultPlan
  int attempt = 0;                  ///< train: n-th of a run that is started again; 0: the only one
  std::int64_t check_replicas = 0;  ///< train: steps between checks of copies; 0: none
  int steps = 0;                    ///< > 0: in place of trainer.max_steps
  double timeout_s = 100;
  bool json = false;                      ///< one JSON document on stdout
  std::string trace_format = "perfetto";  ///< see trace_name()
  bool fold = true;         ///< simulate: of equal ranks one runs and represents the others
  bool replay = true;       ///< simulate: passes that repeat are not executed
  std::string routing;      ///< simulate: see parse_routing(); "": balanced
  std::string calibration;  ///< file of `trellis calibrate`; "": none
  std::int64_t checkpoint_every = 0;  ///< simulate: steps between saves; 0: as the file says
  std::string checkpoint_storage;     ///< simulate: where they go; "": none, or nvme with _every
  bool memory_timeline = false;       ///< also memory_timeline.json of the fullest rank
  std::function<void(const std::string& directory)>
      began;  ///< when set: called with the place where the run writes its files before it does
  /// When set: called with the text that would be printed, after all files of the run are written
  /// and while its folder is still locked.
  std::function<void(const std::string& text)> ended;
};

}  // namespace trellis::trainer
