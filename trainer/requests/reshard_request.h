#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_source.h"

namespace trellis::trainer {

/// Arguments of `trellis checkpoint reshard`. Plain data: the program hands it to
/// libtrellis_trainer.so.
struct ReshardRequest : RunSource {
  std::string source, destination;
  /// For a checkpoint of NxD, NxDT or NNM: the configuration of its training; "": config_file.
  std::string saved_with;
  std::string source_format;  ///< that it must be of; "": any
  bool for_nxd = false;       ///< files that NxD's load_checkpoint takes
  bool weights_only = false;
  bool json = false;
};

}  // namespace trellis::trainer
