#pragma once

#include <string>
#include <vector>

namespace trellis::trainer {

/// What `trellis checkpoint reshard` was asked for. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct ReshardRequest {
  std::string source, destination;
  std::string config_file;  ///< "": the configuration that the source was saved with
  /// Of a checkpoint of NxD, NxDT or NNM: the configuration of its training; "": config_file.
  std::string saved_with;
  std::vector<std::string> overrides;      ///< key.path=value
  std::string instance = "trn1.32xlarge";  ///< orders the copies of key/value heads
  std::string source_format;               ///< that it must be of; "": any
  bool for_nxd = false;                    ///< files that NxD's load_checkpoint takes
  bool weights_only = false;
  bool json = false;
};

}  // namespace trellis::trainer

/// Writes the source in the layout of the configuration, prints, returns the exit code; throws
/// nothing.
extern "C" int trellis_checkpoint_reshard(const trellis::trainer::ReshardRequest* request);
using trellis_checkpoint_reshard_fn = int (*)(const trellis::trainer::ReshardRequest*);
