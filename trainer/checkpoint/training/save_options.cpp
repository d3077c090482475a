#include "trainer/checkpoint/training/save_options.h"

#include <cmath>

#include "trainer/checkpoint/training/lora_config.h"

namespace trellis::checkpoint {

native::SaveOptions save_options(const trainer::RunConfig& config) {
  constexpr double kGib = 1 << 30;
  const trainer::CheckpointSection& section = config.exp_manager.checkpoints;
  const double buffer = std::ceil(section.async_buffer_gib.value_or(0) * kGib);
  return {.async = section.async,
          .parallel = config.model.dist_ckpt.parallel_save,
          .constant_structure = config.model.dist_ckpt.assume_constant_structure,
          .buffer_bytes = static_cast<std::int64_t>(buffer)};
}

native::FileOptions file_options(const trainer::RunConfig& config) {
  const trainer::CheckpointSection& section = config.exp_manager.checkpoints;
  native::FileOptions options{section.save_xser, section.save_bf16};
  const auto& lora = config.model.lora;
  if (lora && lora->config_in_file) options.lora_config = lora_config_value(*lora);
  return options;
}

}  // namespace trellis::checkpoint
