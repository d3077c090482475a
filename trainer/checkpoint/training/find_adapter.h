#pragma once

#include <memory>

#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint {

inline constexpr const char* kAdapterFile = "adapter_model.pt";  ///< NxD's, of one device

/// The adapters that load_lora_from_ckpt asks for, as they were saved. In lora_save_dir, or in its
/// folder lora_load_tag, the first of these that is there:
///   adapter_model.safetensors  PEFT's folder
///   adapter_model.pt           NxD's, of one device
///   a checkpoint of this program, with or without the base's weights, or of NxD
///   the newest complete folder of those
/// Throws ConfigError: none is there; adapters of another rank, scale, policy of biases, or set of
/// whole modules than model_alignment_strategy.peft says. REQUIRES: config.model.lora->load.
[[nodiscard]] std::unique_ptr<TensorSource> find_adapter(const trainer::RunConfig& config);

}  // namespace trellis::checkpoint
