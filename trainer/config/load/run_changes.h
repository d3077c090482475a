#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/run_config.h"

namespace trellis::trainer {

/// A setting of a training that goes on with another value.
struct RunChange {
  std::string key;         ///< "model.optim.betas"
  std::string saved, now;  ///< as YAML; "none": not written
  bool operator==(const RunChange&) const = default;
};

/// Settings whose values differ and make another training of the same model: the optimizer's
/// numbers, data, precision, and the schedule where it gives another rate from optimizer step
/// `step` on. Layout, paths, logging and the properties of the model itself (model_properties) are
/// not among them.
/// REQUIRES: both have their resolved_yaml.
[[nodiscard]] std::vector<RunChange> run_changes(const RunConfig& saved, const RunConfig& now,
                                                 std::int64_t step);

}  // namespace trellis::trainer
