#include "trainer/parallel_layers/parameter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "base/content_hash.h"
#include "base/error.h"
#include "trainer/parallel_layers/collectives.h"

namespace trellis::trainer {
namespace {

/// In fp32 whatever the run's type: every precision starts from the same model.
at::Tensor draw(const ModuleContext& context, const std::string& name,
                const std::vector<std::int64_t>& shape, const WeightInit& init) {
  const at::Tensor full = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  init.fill(full, at::detail::createCPUGenerator(stream_seed(context.seed, name)));
  return context.dtype == at::kDouble ? full.to(at::kDouble) : full;
}

Partition partition_of(const WeightSpec& spec) {
  if (spec.partition) return *spec.partition;
  const std::int64_t size =
      spec.partition_dim < 0 ? 0 : spec.shape[static_cast<std::size_t>(spec.partition_dim)];
  return strided_partition(spec.partition_dim, size, spec.partition_stride);
}

std::vector<std::int64_t> shard_shape(const WeightSpec& spec, const Partition& partition, int tp) {
  std::vector<std::int64_t> shape = spec.shape;
  if (!partition.is_sharded()) return shape;
  auto& size = shape[static_cast<std::size_t>(partition.dim)];
  if (!spec.partition && size % (std::int64_t{tp} * spec.partition_stride) != 0) {
    throw ConfigError(c10::str(spec.name, ": cannot shard dimension ", partition.dim,
                               " over tensor_model_parallel_size ", tp, ": expected a multiple of ",
                               tp * spec.partition_stride, ", got ", size,
                               "; change the model's sizes or tensor_model_parallel_size"));
  }
  size = 0;
  for (const PartitionBlock& block : partition.blocks) size += block.laid_out() / tp;
  return shape;
}

}  // namespace

std::uint64_t stream_seed(std::int64_t seed, const std::string& name) {
  ContentHasher hasher;
  hasher.value(seed);
  hasher.text(name);
  return hasher.finish().low;
}

at::Tensor draw_full_weight(const ModuleContext& context, const WeightSpec& spec) {
  if (spec.parts.empty()) return draw(context, spec.name, spec.shape, spec.init);
  std::vector<at::Tensor> parts;
  for (const WeightPart& part : spec.parts) {
    std::vector<std::int64_t> shape = spec.shape;
    shape[0] = part.rows;
    parts.push_back(draw(context, part.name, shape, spec.init));
  }
  return at::cat(parts, 0);
}

at::Tensor shard_of(const at::Tensor& full, int dim, int stride, const ParallelGroup& tp) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& block : full.chunk(stride, dim)) parts.push_back(split(block, dim, tp));
  return stride == 1 ? parts[0] : at::cat(parts, dim);
}

at::Tensor join_shards(const std::vector<at::Tensor>& shards, int dim, int stride) {
  std::vector<at::Tensor> blocks;
  for (int block = 0; block < stride; ++block) {
    for (const at::Tensor& shard : shards)
      blocks.push_back(shard.chunk(stride, dim)[static_cast<std::size_t>(block)]);
  }
  return at::cat(blocks, dim);
}

Parameter& make_parameter(const ModuleContext& context, const WeightSpec& spec) {
  const at::NoGradGuard no_grad;
  const ParallelGroup& tp = context.tp();
  const Partition partition = partition_of(spec);
  const std::vector<std::int64_t> shape = shard_shape(spec, partition, tp.size);
  at::Tensor tensor =
      at::empty(shape, at::TensorOptions().dtype(context.dtype).device(context.device));
  if (!context.shape_only) {
    tensor.copy_(
        shard_of(draw_full_weight(context, spec), partition, tp.rank, tp.size).to(context.dtype));
  }
  tensor.set_requires_grad(true);
  Parameter parameter;
  parameter.name = spec.name;
  parameter.tensor = std::move(tensor);
  parameter.tensor_model_parallel = partition.is_sharded();
  parameter.partition_dim = partition.dim;
  parameter.partition_stride =
      partition.is_sharded() ? static_cast<int>(partition.blocks.size()) : 1;
  parameter.partition = partition;
  context.parameters->push_back(std::move(parameter));
  return context.parameters->back();
}

}  // namespace trellis::trainer
