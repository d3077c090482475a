#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// The nonlinearity between the two layers of an MLP: [.., f] → [.., f], or [.., 2f] → [.., f] when
/// gated.
///   gelu         x · Φ(x), exact             openai_gelu  the same with the tanh approximation
///   geglu       gelu(gate) · up        reglu        relu(gate) · up        swiglu  silu(gate) · up
[[nodiscard]] at::Tensor activate(Activation activation, const at::Tensor& input);

/// The same with gate and up as separate tensors, both [.., f]. REQUIRES: is_gated(activation).
[[nodiscard]] at::Tensor activate(Activation activation, const at::Tensor& gate,
                                  const at::Tensor& up);

/// silu(gate) · up, which keeps nothing but its input for backward.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace trellis::trainer
