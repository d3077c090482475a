#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_source.h"

namespace trellis::trainer {

/// Arguments of `trellis portability`. Plain data: the program hands it to libtrellis_trainer.so.
struct PortabilityRequest : RunSource {
  double timeout_s = 100;
};

/// A device of LibTorch whose operators are asked for.
struct DeviceRequest {
  std::string device, plugin, library;  ///< see RunRequest
};

}  // namespace trellis::trainer
