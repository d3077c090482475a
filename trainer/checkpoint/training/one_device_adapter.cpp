#include "trainer/checkpoint/training/one_device_adapter.h"

#include "base/error.h"
#include "base/log.h"
#include "trainer/files/checkpoint/adapters/peft_folder.h"
#include "trainer/files/checkpoint/formats/native/native_source.h"

namespace trellis::checkpoint {

std::string save_one_device(const trainer::RunConfig& config, const Place& checkpoint,
                            const Place& folder) {
  const auto& section = config.exp_manager.checkpoints;
  const trainer::LoraSection& lora = *config.model.lora;
  const adapters::PeftOptions options{
      .base_model = config.model.weight_init_only ? section.resume_from_checkpoint : "",
      .replaces = true,
      .config_in_file = lora.config_in_file};
  try {
    adapters::write_peft_folder(native::NativeSource(checkpoint), lora, options, folder);
    return "";
  } catch (const Error& error) {
    log_warning(folder.address() + ": the adapters of " + checkpoint.address() +
                " are not saved: " + error.what() + "; training goes on and saves the next ones");
    return error.what();
  }
}

}  // namespace trellis::checkpoint
