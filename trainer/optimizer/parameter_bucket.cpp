#include "trainer/optimizer/parameter_bucket.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace trellis::trainer {
namespace {

std::int64_t padded_shard_elements(const at::Tensor& parameter, int num_shards) {
  const std::int64_t rows = parameter.size(0);
  return (rows + num_shards - 1) / num_shards * (parameter.numel() / rows);
}

}  // namespace

/// Moves each gradient into the accumulation buffer as soon as autograd has it, and frees it.
class ParameterBucket::AccumulateMainGrad final : public torch::autograd::PostAccumulateGradHook {
 public:
  AccumulateMainGrad(ParameterBucket& bucket, std::size_t slot) : bucket_(bucket), slot_(slot) {}
  void operator()(const at::Tensor& parameter) override {
    bucket_.accumulate(bucket_.slots_[slot_], parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  ParameterBucket& bucket_;
  std::size_t slot_;
};

ParameterBucket::ParameterBucket(std::vector<Parameter*> parameters, ParallelGroup sharding, at::ScalarType grad_dtype)
    : sharding_(std::move(sharding)) {
  for (Parameter* parameter : parameters) {
    TORCH_INTERNAL_ASSERT(parameter->tensor.is_contiguous(), parameter->name);
    Slot slot;
    slot.parameter = parameter;
    slot.offset = shard_elements_;
    slot.shard_elements = padded_shard_elements(parameter->tensor, sharding_.size);
    shard_elements_ += slot.shard_elements;
    slots_.push_back(std::move(slot));
  }
  const at::TensorOptions options = kind().tensor.options().dtype(grad_dtype).requires_grad(false);
  main_grad_ = at::zeros({shard_elements_ * sharding_.size}, options);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const at::Tensor& tensor = slot.parameter->tensor;
    slot.padded_main_grad = main_grad_.narrow(0, slot.offset * sharding_.size, slot.shard_elements * sharding_.size);
    slot.main_grad = slot.padded_main_grad.narrow(0, 0, tensor.numel()).view(tensor.sizes());
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<AccumulateMainGrad>(*this, i));
  }
}

ParameterBucket::~ParameterBucket() {
  for (const Slot& slot : slots_) torch::autograd::impl::set_post_acc_grad_hooks(slot.parameter->tensor, nullptr);
}

void ParameterBucket::accumulate(Slot& slot, const at::Tensor& grad) const {
  const at::NoGradGuard no_grad;
  if (slot.has_grad) {
    slot.main_grad.add_(grad);
  } else {
    slot.main_grad.copy_(grad);
  }
  slot.has_grad = true;
}

void ParameterBucket::end_accumulation() {
  for (Slot& slot : slots_) {
    TORCH_INTERNAL_ASSERT(slot.has_grad, slot.parameter->name, " got no gradient in this step");
    slot.has_grad = false;
  }
}

std::vector<at::Tensor> ParameterBucket::slices_of(const at::Tensor& shard) const {
  std::vector<at::Tensor> slices;
  for (const Slot& slot : slots_) slices.push_back(shard.narrow(0, slot.offset, slot.shard_elements));
  return slices;
}

PendingCollective ParameterBucket::start_reduce_scatter() const {
  if (sharding_.size == 1) return PendingCollective(main_grad_);
  at::Tensor shard = at::empty({shard_elements_}, main_grad_.options());
  std::vector<at::Tensor> inputs;
  for (const Slot& slot : slots_) inputs.push_back(slot.padded_main_grad);
  return start_reduce_scatter_coalesced(std::move(inputs), slices_of(shard), sharding_).with_result(std::move(shard));
}

at::Tensor ParameterBucket::shard_of_parameters(at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  at::Tensor shard = at::zeros({shard_elements_}, main_grad_.options().dtype(dtype));
  for (const Slot& slot : slots_) {
    const at::Tensor values = slot.parameter->tensor.view(-1);
    const std::int64_t first = std::min(slot.shard_elements * sharding_.rank, values.numel());
    const std::int64_t count = std::min(slot.shard_elements, values.numel() - first);
    if (count > 0) shard.narrow(0, slot.offset, count).copy_(values.narrow(0, first, count));
  }
  return shard;
}

void ParameterBucket::Gather::finish() {
  pending.wait();
  for (auto& [parameter, arrived] : padded) parameter.copy_(arrived.narrow(0, 0, parameter.numel()));
}

ParameterBucket::Gather ParameterBucket::start_all_gather(const at::Tensor& shard) const {
  Gather gather{PendingCollective(at::Tensor()), {}};
  const std::vector<at::Tensor> slices = slices_of(shard);
  if (sharding_.size == 1) {
    for (std::size_t i = 0; i < slots_.size(); ++i) gather.padded.emplace_back(slots_[i].parameter->tensor.view(-1), slices[i]);
    return gather;
  }
  std::vector<at::Tensor> outputs;
  for (const Slot& slot : slots_) {
    at::Tensor place = slot.parameter->tensor.view(-1);
    const std::int64_t padded = slot.shard_elements * sharding_.size;
    if (padded != place.numel()) {
      gather.padded.emplace_back(place, at::empty({padded}, place.options()));
      place = gather.padded.back().second;
    }
    outputs.push_back(std::move(place));
  }
  gather.pending = start_all_gather_coalesced(slices_of(shard.to(kind().tensor.scalar_type())), std::move(outputs), sharding_);
  return gather;
}

}  // namespace trellis::trainer
