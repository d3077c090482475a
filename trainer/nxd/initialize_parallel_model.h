#pragma once

#include <memory>

#include "trainer/nxd/nxd_model.h"

namespace trellis::trainer {

/// Builds the model on this rank: only the layers that live here, `sequential_move_factor` ranks at
/// a time. Every rank calls it. `include_buffers`: with meta_device_init, buffers get their values
/// from param_init_fn too; else throws ConfigError.
[[nodiscard]] std::unique_ptr<NxDModel> initialize_parallel_model(const NxDConfig& config,
                                                                  runtime::RankContext& rank,
                                                                  const ModelFunction& model_fn,
                                                                  bool include_buffers = false);

}  // namespace trellis::trainer
