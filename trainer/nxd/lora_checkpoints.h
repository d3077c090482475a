#pragma once

#include <string>

#include "trainer/checkpoint/state/live_state.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/storage/storage.h"
#include "trainer/nxd/lora_config.h"

namespace trellis::runtime {
class RankContext;
}

namespace trellis::trainer {

class NxDModel;

/// Fills the model's adapters from there, of any layout; the base's weights stay. Every rank calls
/// it. Throws ConfigError with every adapter that is missing or has another shape.
void load_adapters(runtime::RankContext& rank, NxDModel& model);

/// The part of `live` that save_checkpoint saves, by save_lora_base and merge_lora.
[[nodiscard]] checkpoint::LiveState saved_with_adapters(const NxDModel& model,
                                                        checkpoint::LiveState live);
/// True if a weight of this name is trained with adapters, so that an adapter's checkpoint has it.
[[nodiscard]] bool is_trained_key(const LoraSection& lora, const std::string& key);
/// `lora_config` of the files of weights; None: adapter_config.json has it, or there is no adapter.
[[nodiscard]] checkpoint::Value lora_config_in_file(const NxDModel* model);
/// Writes adapter_config.json into the folder around the checkpoints, where it is asked for.
void write_adapter_config(const NxDModel* model, checkpoint::Storage& folder);

}  // namespace trellis::trainer
