#pragma once

#include <nlohmann/json_fwd.hpp>

#include "trainer/checkpoint/formats/native/state_files.h"
#include "trainer/config/run_config.h"

namespace trellis::checkpoint {

/// What NxD saves of its LoraConfig, for adapter_config.json; PEFT's names where they differ.
[[nodiscard]] nlohmann::json lora_config(const trainer::LoraSection& lora);

/// How a run of `config` writes files: with save_lora_config_adapter `lora_config` is in them.
[[nodiscard]] native::FileOptions file_options(const trainer::RunConfig& config);

}  // namespace trellis::checkpoint
