#pragma once

#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/parallel_layers/parallel_state.h"
#include "trainer/parallel_layers/parameter.h"

namespace trellis::trainer {

/// Gradients of some parameters, flat, as this rank holds them.
struct GradientPart {
  at::Tensor grad;
  bool tensor_model_parallel =
      false;  ///< sharded over TP; otherwise every TP rank holds the same values
  int copies =
      1;  ///< when sharded: TP ranks that hold the same values (replicated key/value heads)
  int holders = 1;  ///< members of GradNormGroups::sharding that hold the same values
};

/// Over which axes the gradient vector is spread.
struct GradNormGroups {
  ParallelGroup tensor;
  ParallelGroup pipeline;
  ParallelGroup sharding;  ///< data × context parallel with ZeRO-1, which expert parallelism lies
                           ///< within; expert parallel without
};

inline constexpr double kInfinityNorm = std::numeric_limits<double>::infinity();

/// The parts of `flat`: elements first_element … of the flattened gradient of `parameter`'s shard.
/// More than one only where rows with and without copies are fused (weight_qkv with replicated
/// heads); none for a tied copy.
[[nodiscard]] std::vector<GradientPart> gradient_parts(const Parameter& parameter,
                                                       const at::Tensor& flat,
                                                       std::int64_t first_element = 0);

/// L2, Lp or infinity norm of the whole, un-sharded gradient vector, each element counted once: a
/// number on the device, the same on every rank and for every layout. Throws ConfigError unless
/// norm_type > 0, c10::Error without gradients.
at::Tensor get_grad_norm(const std::vector<GradientPart>& parts, const GradNormGroups& groups,
                         double norm_type = 2);
/// Scales the gradients in place by max_norm / (norm + 1e-6) where that is below 1, and by `scale`
/// where it is defined: `norm` is that of the scaled gradients. Needs no word from the host.
void clip_grads_with_norm(const std::vector<GradientPart>& parts, double max_norm,
                          const at::Tensor& norm, const at::Tensor& scale = {});
/// Both; returns the norm before clipping.
at::Tensor clip_grad_norm(const std::vector<GradientPart>& parts, const GradNormGroups& groups,
                          double max_norm, double norm_type = 2);
/// NxD's parallel_layers.clip_grad_norm: the same of the gradients that LibTorch keeps with the
/// parameters (Tensor::grad), reduced over data-parallel ranks. Those without one add zero. Every
/// rank calls it.
at::Tensor clip_grad_norm(ParameterList& parameters, const ParallelState& parallel, double max_norm,
                          double norm_type = 2);

}  // namespace trellis::trainer
