#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/config/model_section.h"

namespace trellis::trainer {

/// Whether the activation multiplies a gate with a second part of its input: gate | up along the last dimension.
[[nodiscard]] bool is_gated(Activation activation);

/// The nonlinearity between the two layers of an MLP: [.., f] → [.., f], or [.., 2f] → [.., f] when gated.
///   gelu         x · Φ(x), exact             openai_gelu  the same with the tanh approximation
///   geglu        gelu(gate) · up             reglu        relu(gate) · up             swiglu  silu(gate) · up
[[nodiscard]] at::Tensor activate(Activation activation, const at::Tensor& input);

/// silu(gate) · up, which keeps nothing but its input for backward.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace trellis::trainer
