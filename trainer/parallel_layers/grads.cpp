#include "trainer/parallel_layers/grads.h"

#include <cmath>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {

/// A replicated gradient counts once: each of the TP ranks adds its TP-th part of the squares.
at::Tensor get_grad_norm(const std::vector<GradientPart>& parts, const GradNormGroups& groups) {
  TORCH_INTERNAL_ASSERT(!parts.empty(), "gradient norm of no gradients");
  std::vector<at::Tensor> norms;
  for (const GradientPart& part : parts) {
    const at::ScalarType dtype = part.grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor norm = at::linalg_vector_norm(part.grad, 2, at::OptionalIntArrayRef(), /*keepdim=*/false, dtype);
    if (!part.tensor_model_parallel && groups.tensor.size > 1) norm.mul_(1 / std::sqrt(static_cast<double>(groups.tensor.size)));
    norms.push_back(std::move(norm));
  }
  at::Tensor squares = at::stack(norms).square_().sum();
  squares = all_reduce(squares, groups.tensor);
  squares = all_reduce(squares, groups.pipeline);
  squares = all_reduce(squares, groups.sharding);
  return squares.sqrt_();
}

void clip_grads_with_norm(const std::vector<GradientPart>& parts, double max_norm, const at::Tensor& norm) {
  const at::Tensor coefficient = norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1);
  for (const GradientPart& part : parts) part.grad.mul_(coefficient);
}

}  // namespace trellis::trainer
