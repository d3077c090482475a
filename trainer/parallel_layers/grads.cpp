#include "trainer/parallel_layers/grads.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "base/error.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

bool has_uniform_copies(const Partition& partition) {
  const auto same = [&](const PartitionBlock& block) {
    return block.copies == partition.blocks.front().copies;
  };
  return std::all_of(partition.blocks.begin(), partition.blocks.end(), same);
}

/// Norm of one part. A value that several TP ranks hold counts once: each of them adds its share of
/// the p-th powers.
at::Tensor norm_of(const GradientPart& part, int tp, double norm_type) {
  const at::ScalarType dtype = part.grad.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor norm = at::linalg_vector_norm(part.grad, norm_type, at::OptionalIntArrayRef(),
                                           /*keepdim=*/false, dtype);
  const int copies = (part.tensor_model_parallel ? part.copies : tp) * part.holders;
  return copies > 1 && std::isfinite(norm_type)
             ? norm.mul_(std::pow(static_cast<double>(copies), -1 / norm_type))
             : norm;
}

}  // namespace

std::vector<GradientPart> gradient_parts(const Parameter& parameter, const at::Tensor& flat,
                                         std::int64_t first_element) {
  if (parameter.shared) return {};
  const Partition& partition = parameter.partition;
  if (!partition.is_sharded() || has_uniform_copies(partition)) {
    return {{flat, partition.is_sharded(),
             partition.is_sharded() ? partition.blocks.front().copies : 1}};
  }
  TORCH_INTERNAL_ASSERT(partition.dim == 0, parameter.name, ": only rows are replicated");
  std::int64_t laid_out = 0;
  for (const PartitionBlock& block : partition.blocks) laid_out += block.laid_out();
  std::vector<GradientPart> parts;
  std::int64_t begin = 0;
  for (const PartitionBlock& block : partition.blocks) {
    const std::int64_t end = begin + parameter.tensor.numel() * block.laid_out() / laid_out;
    const std::int64_t first = std::max(begin, first_element),
                       last = std::min(end, first_element + flat.numel());
    if (first < last)
      parts.push_back(
          {flat.view(-1).narrow(0, first - first_element, last - first), true, block.copies});
    begin = end;
  }
  return parts;
}

at::Tensor get_grad_norm(const std::vector<GradientPart>& parts, const GradNormGroups& groups,
                         double norm_type) {
  TORCH_CHECK(!parts.empty(), "get_grad_norm: expected at least one gradient, got none");
  if (!(norm_type > 0)) {
    throw ConfigError(
        c10::str("get_grad_norm: norm_type must be a positive number or infinity (2: Euclidean): "
                 "expected > 0, got ",
                 norm_type));
  }
  std::vector<at::Tensor> norms;
  for (const GradientPart& part : parts)
    norms.push_back(norm_of(part, groups.tensor.size, norm_type));
  at::Tensor local = at::stack(norms);
  if (std::isinf(norm_type)) {
    at::Tensor largest = local.amax();
    for (const ParallelGroup* group : {&groups.tensor, &groups.pipeline, &groups.sharding})
      largest = all_reduce_max(largest, *group);
    return largest;
  }
  at::Tensor powers = (norm_type == 2 ? local.square_() : local.pow_(norm_type)).sum();
  for (const ParallelGroup* group : {&groups.tensor, &groups.pipeline, &groups.sharding})
    powers = all_reduce(powers, *group);
  return norm_type == 2 ? powers.sqrt_() : powers.pow_(1 / norm_type);
}

void clip_grads_with_norm(const std::vector<GradientPart>& parts, double max_norm,
                          const at::Tensor& norm, const at::Tensor& scale) {
  at::Tensor coefficient =
      std::isinf(max_norm) ? scale : norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1);
  if (scale.defined() && !std::isinf(max_norm)) coefficient = coefficient * scale;
  for (const GradientPart& part : parts) part.grad.mul_(coefficient);
}

at::Tensor clip_grad_norm(const std::vector<GradientPart>& parts, const GradNormGroups& groups,
                          double max_norm, double norm_type) {
  at::Tensor norm = get_grad_norm(parts, groups, norm_type);
  clip_grads_with_norm(parts, max_norm, norm);
  return norm;
}

at::Tensor clip_grad_norm(ParameterList& parameters, const ParallelState& parallel, double max_norm,
                          double norm_type) {
  const at::NoGradGuard no_grad;
  std::vector<GradientPart> all, counted;
  for (Parameter& parameter : parameters) {
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) continue;
    if (!grad.is_contiguous()) grad = grad.contiguous();
    all.push_back({grad.view(-1)});
    for (GradientPart& part : gradient_parts(parameter, all.back().grad)) {
      if (!parameter.experts.is_stacked()) part.holders = parallel.get_expert_model_parallel_size();
      counted.push_back(std::move(part));
    }
  }
  if (counted.empty() && parameters.empty()) counted.push_back({at::zeros({1}), true});
  if (counted.empty())
    counted.push_back(
        {at::zeros({1}, parameters.front().tensor.options().requires_grad(false)), true});
  const at::Tensor norm = get_grad_norm(
      counted,
      {parallel.get_tensor_model_parallel_group(), parallel.get_pipeline_model_parallel_group(),
       parallel.get_expert_model_parallel_group()},
      norm_type);
  clip_grads_with_norm(all, max_norm, norm);
  return norm;
}

}  // namespace trellis::trainer
