#include "trainer/optimizer/zero_redundancy_optimizer.h"

#include <map>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "trainer/parallel_layers/collectives.h"
#include "trainer/utils/scope.h"

namespace trellis::trainer {
namespace {

/// NxD's reduce-scatter bucket: large enough for the links, small enough to be a transient buffer.
constexpr std::int64_t kBucketBytes = 130'000'000;

auto kind_of(const Parameter& parameter) {
  return std::make_tuple(parameter.weight_decay, parameter.tensor_model_parallel, parameter.sequence_parallel_enabled);
}

/// Parameters of one kind, in order, cut where a bucket is full. A larger parameter is a bucket of its own.
std::vector<std::vector<Parameter*>> group_into_buckets(ParameterList& parameters, at::ScalarType grad_dtype) {
  struct Open {
    std::size_t bucket;
    std::int64_t bytes;
  };
  std::map<decltype(kind_of(parameters.front())), Open> open;
  std::vector<std::vector<Parameter*>> buckets;
  for (Parameter& parameter : parameters) {
    const std::int64_t bytes = parameter.tensor.numel() * static_cast<std::int64_t>(c10::elementSize(grad_dtype));
    auto found = open.find(kind_of(parameter));
    if (found == open.end() || found->second.bytes + bytes > kBucketBytes) {
      found = open.insert_or_assign(kind_of(parameter), Open{buckets.size(), 0}).first;
      buckets.emplace_back();
    }
    found->second.bytes += bytes;
    buckets[found->second.bucket].push_back(&parameter);
  }
  return buckets;
}

}  // namespace

NeuronZero1Optimizer::NeuronZero1Optimizer(ParameterList& parameters, const ParallelState& parallel, const OptimizerOptions& options)
    : parallel_(parallel), options_(options) {
  for (auto& bucket : group_into_buckets(parameters, options.grad_dtype)) add_shard(std::move(bucket));
}

ParallelGroup NeuronZero1Optimizer::sharding_group() const {
  return options_.zero1 ? parallel_.get_data_parallel_group() : ParallelGroup{};
}

void NeuronZero1Optimizer::add_shard(std::vector<Parameter*> parameters) {
  Shard shard;
  shard.bucket = std::make_unique<ParameterBucket>(std::move(parameters), sharding_group(), options_.grad_dtype);
  shard.master = shard.bucket->shard_of_parameters(options_.master_dtype);
  shard.state = {at::zeros_like(shard.master), at::zeros_like(shard.master)};
  shards_.push_back(std::move(shard));
}

void NeuronZero1Optimizer::reduce_gradients() {
  const Scope scope("phase=grad_reduce");
  const at::NoGradGuard no_grad;
  const ParallelGroup& data = parallel_.get_data_parallel_group();
  std::vector<PendingCollective> pending;
  for (Shard& shard : shards_) {
    shard.bucket->end_accumulation();
    const at::Tensor& grad = shard.bucket->main_grad();
    if (shard.bucket->kind().sequence_parallel_enabled) all_reduce(grad, parallel_.get_tensor_model_parallel_group());
    pending.push_back(options_.zero1 ? shard.bucket->start_reduce_scatter() : start_all_reduce(grad, data));
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].grad = pending[i].wait();
    if (data.size > 1) shards_[i].grad.mul_(1.0 / data.size);
  }
}

std::vector<GradientPart> NeuronZero1Optimizer::gradient_parts() const {
  std::vector<GradientPart> parts;
  for (const Shard& shard : shards_) parts.push_back({shard.grad, shard.bucket->kind().tensor_model_parallel});
  return parts;
}

at::Tensor NeuronZero1Optimizer::step(double lr) {
  const Scope scope("phase=optimizer");
  const at::NoGradGuard no_grad;
  const std::vector<GradientPart> parts = gradient_parts();
  const GradNormGroups groups{parallel_.get_tensor_model_parallel_group(), parallel_.get_pipeline_model_parallel_group(), sharding_group()};
  at::Tensor norm = get_grad_norm(parts, groups);
  if (options_.max_grad_norm) clip_grads_with_norm(parts, *options_.max_grad_norm, norm);
  update_masters(lr);
  gather_parameters();
  return norm;
}

void NeuronZero1Optimizer::update_masters(double lr) {
  ++steps_;
  const at::TensorOptions like = shards_.front().master.options();
  const AdamWStep with_decay(options_.adamw, steps_, lr, options_.weight_decay, like);
  const AdamWStep without_decay(options_.adamw, steps_, lr, 0, like);
  for (Shard& shard : shards_) {
    const AdamWStep& step = shard.bucket->kind().weight_decay ? with_decay : without_decay;
    step.apply(shard.master, shard.grad.to(options_.master_dtype), shard.state);
    shard.grad.reset();
  }
}

/// Weights travel in the model's type: the same bits as casting the masters after the journey, half the bytes.
void NeuronZero1Optimizer::gather_parameters() {
  std::vector<ParameterBucket::Gather> gathers;
  for (const Shard& shard : shards_) gathers.push_back(shard.bucket->start_all_gather(shard.master));
  for (ParameterBucket::Gather& gather : gathers) gather.finish();
}

void NeuronZero1Optimizer::for_each_gradient(const std::function<void(const at::Tensor&)>& visit) const {
  for (const Shard& shard : shards_) visit(shard.bucket->main_grad());
}

void NeuronZero1Optimizer::for_each_state(const std::function<void(const at::Tensor&)>& visit) const {
  for (const Shard& shard : shards_) {
    visit(shard.master);
    visit(shard.state.exp_avg);
    visit(shard.state.exp_avg_sq);
  }
}

}  // namespace trellis::trainer
