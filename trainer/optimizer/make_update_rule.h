#pragma once

#include <memory>

#include "trainer/optimizer/update_rule.h"

namespace trellis::trainer {

/// The rule that `optim.name` and its arguments describe. Throws ConfigError with every problem of
/// the section.
[[nodiscard]] std::shared_ptr<const UpdateRule> make_update_rule(const OptimSection& optim);

}  // namespace trellis::trainer
