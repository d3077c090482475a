#include "trainer/nxd/initialize_parallel_model.h"

#include "base/error.h"
#include "trainer/nxd/lora_checkpoints.h"

namespace trellis::trainer {
std::unique_ptr<NxDModel> initialize_parallel_model(const NxDConfig& config,
                                                    runtime::RankContext& rank,
                                                    const ModelFunction& model_fn,
                                                    bool include_buffers) {
  NxDConfig whole = config;
  whole.model_init_config.include_buffers |= include_buffers;
  if (whole.model_init_config.include_buffers &&
      !whole.model_init_config.meta_device_init.value_or(false)) {
    throw ConfigError(
        "initialize_parallel_model: include_buffers: buffers have their values already: expected "
        "model_init_config.meta_device_init, got it off");
  }
  auto model = std::make_unique<NxDModel>(whole, rank, model_fn);
  if (model->lora() != nullptr && model->lora()->load) load_adapters(rank, *model);
  return model;
}

}  // namespace trellis::trainer
