#pragma once

#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis memory` asks for: one run whose memory is wanted, nothing else. Plain data: the
/// program hands it to libtrellis_trainer.so.
struct MemoryRequest {
  std::string config_file;
  std::vector<std::string> overrides;  ///< key.path=value
  std::string instance;
  int nodes = 1;
  int host_threads = 0;  ///< 0: one per host core
  int steps = 1;
  double timeout_s = 100;
  bool functionalization = false;  ///< the software's: see SoftwareFacts
};

}  // namespace trellis::trainer

/// Trains without data on cores that never refuse memory; nothing is compiled, timed or written.
/// `report`: one JSON document (schema trellis.memory_plan/1 without its changes). Returns the exit
/// code of errors, 0 also when the run does not fit; throws nothing.
extern "C" int trellis_trainer_memory(const trellis::trainer::MemoryRequest* request,
                                      std::string* report);
using trellis_trainer_memory_fn = int (*)(const trellis::trainer::MemoryRequest*, std::string*);
