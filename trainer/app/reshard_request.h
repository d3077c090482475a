#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis checkpoint reshard` was asked for. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct ReshardRequest {
  std::string source, destination;
  std::string config_file;             ///< "": the configuration that the source was saved with
  std::vector<std::string> overrides;  ///< key.path=value
  std::string instance;                ///< orders the copies of key/value heads
  std::optional<int> data_parallel_size;  ///< in place of the configuration's devices and nodes
  bool weights_only = false;
  bool json = false;
};

}  // namespace trellis::trainer

/// Writes the source in the layout of the configuration, prints, returns the exit code; throws
/// nothing.
extern "C" int trellis_checkpoint_reshard(const trellis::trainer::ReshardRequest* request);
using trellis_checkpoint_reshard_fn = int (*)(const trellis::trainer::ReshardRequest*);
