#pragma once

#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis portability` asks for. Plain data: the program hands it to libtrellis_trainer.so.
struct PortabilityRequest {
  std::string config_file;
  std::vector<std::string> overrides;  ///< key.path=value
  std::string instance;
  int nodes = 1;
  int host_threads = 0;  ///< 0: one per host core
  double timeout_s = 100;
};

/// A device of LibTorch whose operators are asked for.
struct DeviceRequest {
  std::string device, plugin, library;  ///< see RunRequest
};

}  // namespace trellis::trainer

/// One step without data on the emulated device. `report`: the operators that it ran (schema
/// trellis.portability/1). Returns an exit code; throws nothing.
extern "C" int trellis_trainer_operators(const trellis::trainer::PortabilityRequest* request,
                                         std::string* report);
using trellis_trainer_operators_fn = int (*)(const trellis::trainer::PortabilityRequest*,
                                             std::string*);
/// Which of `operators` (trellis.portability/1) the device does not have:
/// trellis.device_operators/1. REQUIRES: a process that has no device yet.
extern "C" int trellis_trainer_check_operators(const trellis::trainer::DeviceRequest* request,
                                               const std::string* operators, std::string* report);
using trellis_trainer_check_operators_fn = int (*)(const trellis::trainer::DeviceRequest*,
                                                   const std::string*, std::string*);
