#pragma once

#include <string>
#include <vector>

#include "sim/config/default_instance.h"
#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

namespace trellis::checkpoint {

/// The configuration of a conversion: of `file`, or, when that is "", the one that the checkpoint
/// was saved with. Throws ConfigError as load_run_config, and when the source has none.
[[nodiscard]] trainer::RunConfig config_of(const TensorSource& source, const std::string& file,
                                           const std::vector<std::string>& overrides,
                                           const std::string& instance = sim::kTrainingInstance);

/// True if a training of this program saved the checkpoint, so that config_of() needs no file.
[[nodiscard]] bool has_configuration(const TensorSource& source);

/// The same for what is made of the weights: throws ConfigError, too, where the configuration is of
/// another model (model_check.h).
[[nodiscard]] trainer::RunConfig checked_config_of(const TensorSource& source,
                                                   const std::string& file,
                                                   const std::vector<std::string>& overrides);

}  // namespace trellis::checkpoint
