#include "trainer/parallel_layers/parameter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>

#include "base/content_hash.h"
#include "base/error.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

std::uint64_t stream_seed(std::int64_t seed, const std::string& name) {
  ContentHasher hasher;
  hasher.value(seed);
  hasher.text(name);
  return hasher.finish().low;
}

at::Tensor draw_full_weight(const ModuleContext& context, const WeightSpec& spec) {
  const auto options = at::TensorOptions().dtype(context.dtype == at::kDouble ? at::kDouble : at::kFloat);
  if (spec.init_std == 0) return at::ones(spec.shape, options);
  at::Generator generator = at::detail::createCPUGenerator(stream_seed(context.seed, spec.name));
  return at::empty(spec.shape, options).normal_(0, spec.init_std, generator);
}

std::vector<std::int64_t> shard_shape(const WeightSpec& spec, const ParallelGroup& tp) {
  std::vector<std::int64_t> shape = spec.shape;
  if (spec.partition_dim < 0) return shape;
  auto& size = shape[static_cast<std::size_t>(spec.partition_dim)];
  if (size % (std::int64_t{tp.size} * spec.partition_stride) != 0) {
    throw ConfigError(c10::str(spec.name, ": cannot shard dimension ", spec.partition_dim, " over tensor_model_parallel_size ", tp.size,
                               ": expected a multiple of ", tp.size * spec.partition_stride, ", got ", size,
                               "; change the model's sizes or tensor_model_parallel_size"));
  }
  size /= tp.size;
  return shape;
}

}  // namespace

at::Tensor shard_of(const at::Tensor& full, int dim, int stride, const ParallelGroup& tp) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& block : full.chunk(stride, dim)) parts.push_back(split(block, dim, tp));
  return stride == 1 ? parts[0] : at::cat(parts, dim);
}

at::Tensor join_shards(const std::vector<at::Tensor>& shards, int dim, int stride) {
  std::vector<at::Tensor> blocks;
  for (int block = 0; block < stride; ++block) {
    for (const at::Tensor& shard : shards) blocks.push_back(shard.chunk(stride, dim)[static_cast<std::size_t>(block)]);
  }
  return at::cat(blocks, dim);
}

Parameter& make_parameter(const ModuleContext& context, const WeightSpec& spec) {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> shape = shard_shape(spec, context.tp());
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(context.dtype).device(context.device));
  if (!context.shape_only) {
    const at::Tensor full = draw_full_weight(context, spec);
    const at::Tensor shard = spec.partition_dim < 0 ? full : shard_of(full, spec.partition_dim, spec.partition_stride, context.tp());
    tensor.copy_(shard.to(context.dtype));
  }
  tensor.set_requires_grad(true);
  Parameter parameter;
  parameter.name = spec.name;
  parameter.tensor = std::move(tensor);
  parameter.tensor_model_parallel = spec.partition_dim >= 0;
  parameter.partition_dim = spec.partition_dim;
  parameter.partition_stride = spec.partition_stride;
  context.parameters->push_back(std::move(parameter));
  return context.parameters->back();
}

}  // namespace trellis::trainer
