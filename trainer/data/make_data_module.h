#pragma once

#include <memory>

#include "trainer/config/run_config.h"
#include "trainer/data/data_module.h"

namespace trellis::trainer {

/// The data of `config.data.kind`. Throws ConfigError when data are missing, corrupt, or too short
/// for one global batch.
[[nodiscard]] std::shared_ptr<const DataModule> make_data_module(const RunConfig& config,
                                                                 const ResumePoint& resume = {});
/// Zeros of the right shape: for shape-only runs, which read no data.
[[nodiscard]] std::shared_ptr<const DataModule> make_empty_data_module(const RunConfig& config);

}  // namespace trellis::trainer
