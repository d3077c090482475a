#pragma once

#include <string>

#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// Writes the whole adapters of a complete `checkpoint` of a run into `folder`, in place of those
/// of an older one: adapter_model.safetensors and adapter_config.json, which PEFT loads on one
/// device. Returns why they could not be written, which is a warning, too; "": they were.
std::string save_one_device(const trainer::RunConfig& config, const Place& checkpoint,
                            const Place& folder);

}  // namespace trellis::checkpoint
