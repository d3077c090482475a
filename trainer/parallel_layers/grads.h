#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"

namespace trellis::trainer {

/// Gradients of some parameters, flat, as this rank holds them.
struct GradientPart {
  at::Tensor grad;
  bool tensor_model_parallel = false;  ///< sharded over TP; otherwise every TP rank holds the same values
};

/// Over which axes the gradient vector is spread.
struct GradNormGroups {
  ParallelGroup tensor;
  ParallelGroup pipeline;
  ParallelGroup sharding;  ///< data parallel with ZeRO-1; a group of one without
};

/// L2 norm of the whole, un-sharded gradient vector: a number on the device, the same on every rank and for every layout.
at::Tensor get_grad_norm(const std::vector<GradientPart>& parts, const GradNormGroups& groups);
/// Scales the gradients in place by max_norm / (norm + 1e-6) where that is below 1. Needs no word from the host.
void clip_grads_with_norm(const std::vector<GradientPart>& parts, double max_norm, const at::Tensor& norm);

}  // namespace trellis::trainer
