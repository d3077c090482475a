#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// neuronx_distributed.modules.lora.LoraConfig: NxD's names and defaults.
struct LoraConfig {
  bool enable_lora = true;  ///< false: as if there were no LoraConfig
  int lora_rank = 16;
  double lora_alpha = 8;
  double lora_dropout = 0;    ///< of what A reads
  std::string bias = "none";  ///< which biases are trained: none, all, lora_only
  /// Parallel layers by their path or its end: "up", "block.0.up". A user's model has no defaults.
  std::vector<std::string> target_modules = {};
  std::string target_modules_regex = {};  ///< NxD's target_modules as one text: whole paths match
  std::vector<std::string> modules_to_save = {};  ///< are trained as a whole
  bool use_rslora = false;
  std::string init_lora_weights = "default";  ///< Kaiming-uniform; or gaussian
  /// Weights that save_checkpoint saves: the adapters alone; with save_lora_base the base's weights
  /// too; with merge_lora W + scale · B · A in their place.
  bool save_lora_base = false, merge_lora = false;
  /// true: `lora_config` in the files of weights; false: adapter_config.json in the folder around
  /// the checkpoints.
  bool save_lora_config_adapter = false;
  /// initialize_parallel_model fills the adapters from `lora_load_tag` ("": the newest complete
  /// checkpoint) in `lora_save_dir`, with the numbers that are saved there.
  bool load_lora_from_ckpt = false;
  std::string lora_save_dir = "lora_adapter";
  std::string lora_load_tag = {};
  bool operator==(const LoraConfig&) const = default;
};

/// Adds to `problems` what the configuration breaks, without a model.
void check_lora_config(const LoraConfig& config, Problems& problems);
/// The trainer's own record of it. REQUIRES: a legal configuration.
[[nodiscard]] LoraSection lora_section_of(const LoraConfig& config);

}  // namespace trellis::trainer
