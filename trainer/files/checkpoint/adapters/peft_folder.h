#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/model_section.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::adapters {

inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

struct PeftFolder {
  std::int64_t adapters = 0, parameters = 0, bytes = 0;
};

struct PeftOptions {
  std::string base_model;       ///< a name or a folder, for adapter_config.json
  bool replaces = false;        ///< files of an older adapter; else they are an error
  bool config_in_file = false;  ///< the file of weights has the configuration, too: lora_config
};

/// Writes the adapters of a training's checkpoint, and what it trained as a whole
/// (modules_to_save), as a folder that PEFT loads. Throws ConfigError: the checkpoint has no
/// adapters, or some of another rank, as adapters_of(), and a folder that has an adapter.
PeftFolder write_peft_folder(const TensorSource& source, const trainer::LoraSection& lora,
                             const PeftOptions& options, const Place& out);

}  // namespace trellis::checkpoint::adapters
