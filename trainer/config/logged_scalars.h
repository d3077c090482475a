#pragma once

#include <string>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// Tags of the scalars that a training run of this configuration logs, in alphabetical order; early
/// stopping may monitor each of them. Those of validation are there after steps that validate,
/// simulated ones on an emulated device.
[[nodiscard]] std::vector<std::string> logged_scalars(const RunConfig& config);

/// Tags of the scalars of preference optimization, in the order in which a model gives them; TRL's
/// names. Empty for other objectives.
[[nodiscard]] std::vector<std::string> preference_tags(const ModelSection& model);

/// Lightning's tag of trainer.track_grad_norm: grad_2.0_norm_total, grad_inf_norm_total.
[[nodiscard]] std::string tag_of_grad_norm(double norm_type);

/// True if a scalar with this tag belongs to validation.
[[nodiscard]] bool is_of_validation(const std::string& tag);

}  // namespace trellis::trainer
