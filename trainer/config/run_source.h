#pragma once

#include <string>
#include <vector>

#include "sim/config/default_instance.h"

namespace trellis::trainer {

/// The run that a verb is about: a configuration, and the machine to emulate.
struct RunSource {
  std::string config_file;
  std::vector<std::string> overrides = {};  ///< key.path=value
  std::string instance = sim::kTrainingInstance;
  int nodes = 1;
  std::vector<std::string> hardware = {};  ///< other numbers of the machine,
                                           ///< "core.dma.engine_rate=20 GB/s"
  bool calibrated = true;                  ///< false: none of its fitted numbers
  int host_threads = 0;                    ///< 0: one per host core
};

}  // namespace trellis::trainer
