#pragma once

#include <memory>

#include "trainer/optimizer/update_rule.h"

namespace trellis::trainer {

/// The rules that treat each element for itself: adamw, adamw_fp32OptState, adam, sgd, adadelta,
/// adamax, adagrad, rmsprop, rprop. Null for another name. REQUIRES: a section that passed
/// check_optimizer.
[[nodiscard]] std::shared_ptr<const UpdateRule> make_elementwise_rule(const OptimSection& optim);

}  // namespace trellis::trainer
