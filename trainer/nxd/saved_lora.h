#pragma once

#include <string>

#include "trainer/files/checkpoint/storage/place.h"
#include "trainer/nxd/lora_config.h"

namespace trellis::trainer {

/// The checkpoint that lora_save_dir and lora_load_tag name. Throws ConfigError: there is none.
[[nodiscard]] checkpoint::Place adapter_place(const std::string& folder, const std::string& tag);
/// load_lora_from_ckpt: `config` with rank, scale, bias and targets of the adapters in
/// lora_save_dir; what differs is logged. Throws ConfigError: there are none, or nothing says what
/// they are.
[[nodiscard]] LoraConfig with_saved_numbers(LoraConfig config);

}  // namespace trellis::trainer
