#pragma once

#include "trainer/checkpoint/formats/native/saver.h"
#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// How the ranks of a run save.
[[nodiscard]] native::SaveOptions save_options(const trainer::RunConfig& config);

/// How a run of `config` writes files: with save_lora_config_adapter `lora_config` is in them.
[[nodiscard]] native::FileOptions file_options(const trainer::RunConfig& config);

}  // namespace trellis::checkpoint
