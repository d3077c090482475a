#pragma once

#include <nlohmann/json_fwd.hpp>

#include "trainer/config/model_section.h"
#include "trainer/files/checkpoint/containers/value.h"

namespace trellis::checkpoint {

/// The settings of its LoraConfig that NxD saves, for adapter_config.json; PEFT's names where they
/// differ.
[[nodiscard]] nlohmann::json lora_config(const trainer::LoraSection& lora);
/// The same for files of torch.
[[nodiscard]] Value lora_config_value(const trainer::LoraSection& lora);

}  // namespace trellis::checkpoint
