#pragma once

#include <memory>

#include "trainer/optimizer/update_rule.h"

namespace trellis::trainer {

/// The rules that need norms or means of whole tensors: novograd, adafactor. Null for another name.
/// REQUIRES: a section that passed check_optimizer.
[[nodiscard]] std::shared_ptr<const UpdateRule> make_layerwise_rule(const OptimSection& optim);

std::shared_ptr<const UpdateRule> make_novograd(const OptimSection& optim);
std::shared_ptr<const UpdateRule> make_adafactor(const OptimSection& optim);

}  // namespace trellis::trainer
