#pragma once

#include <cstdint>
#include <string>

#include "sim/config/default_instance.h"

namespace trellis::trainer {

/// A folder of NxD, NxDT or NNM whose weights the program asks for. Plain data: the program hands
/// it to libtrellis_trainer.so, which fills in the results.
struct NxdContentRequest {
  std::string checkpoint;
  std::string config_file;                        ///< NxDT YAML of the training that saved it
  std::string instance = sim::kTrainingInstance;  ///< orders the copies of key/value heads

  std::string format, manifest;  ///< results: checkpoint::NxdContent; the manifest as JSON
  bool is_renamed = false, has_stacked_experts = false;
  std::int64_t heads = 0, kv_heads = 0;
};

}  // namespace trellis::trainer
