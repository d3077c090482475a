#include "trainer/optimizer/parameter_bucket.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "trainer/optimizer/bucket_plan.h"

namespace trellis::trainer {

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

ParameterBucket::ParameterBucket(std::vector<Parameter*> parameters, ParallelGroup tensor,
                                 ParallelGroup sharding, at::ScalarType grad_dtype,
                                 ParallelGroup expert)
    : sharding_(sharding),
      layout_{{}, 0, std::move(tensor), std::move(sharding), std::move(expert)} {
  for (Parameter* parameter : parameters) add_slot(parameter);
  options_ = kind().tensor.options().dtype(grad_dtype).requires_grad(false);
  for (const Slot& slot : slots_) elements_ += slot.parameter->tensor.numel();
  if (!is_fully_sharded()) allocate_gradient();
  for (std::size_t i = 0; i < slots_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(slots_[i].parameter->tensor,
                                                   std::make_unique<AccumulateMainGrad>(*this, i));
}

void ParameterBucket::allocate_gradient() {
  main_grad_ =
      is_fully_sharded() ? at::empty({elements_}, options_) : at::zeros({elements_}, options_);
  std::int64_t offset = 0;
  for (Slot& slot : slots_) {
    const at::Tensor& weight = slot.parameter->tensor;
    slot.main_grad = main_grad_.narrow(0, offset, weight.numel()).view(weight.sizes());
    offset += weight.numel();
  }
}

void ParameterBucket::release_gradient() {
  main_grad_.reset();
  for (Slot& slot : slots_) slot.main_grad.reset();
}

void ParameterBucket::add_slot(Parameter* parameter) {
  const at::Tensor& tensor = parameter->tensor;
  TORCH_INTERNAL_ASSERT(parameter->is_fully_sharded() || tensor.is_contiguous(), parameter->name);
  const std::int64_t rows = tensor.size(0), share = rows_per_shard(tensor, sharding_.size);
  ShardSlot shard;
  shard.parameter = parameter;
  shard.offset = layout_.elements;
  shard.row_elements = tensor.numel() / rows;
  shard.elements = share * shard.row_elements;
  shard.first_row = std::min(share * sharding_.rank, rows);
  shard.rows = std::min(share, rows - shard.first_row);
  const at::Tensor weights = row_weights_of(*parameter, layout_.tensor.size);
  if (weights.defined())
    shard.row_weights = weights.narrow(0, shard.first_row, shard.rows).to(tensor.device());
  layout_.elements += shard.elements;
  layout_.slots.push_back(shard);
  Slot slot;
  slot.parameter = parameter;
  slots_.push_back(std::move(slot));
}

ParameterBucket::~ParameterBucket() {
  for (const Slot& slot : slots_)
    torch::autograd::impl::set_post_acc_grad_hooks(slot.parameter->tensor, nullptr);
}

void ParameterBucket::accumulate(Slot& slot, const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(expected_gradients_ == 0 || slot.gradients < expected_gradients_,
              slot.parameter->name, " got more than the expected ", expected_gradients_,
              " gradients in this step: its sum is already on its way to the other ranks");
  ++slot.gradients;
  if (is_fully_sharded()) return accumulate_of_pass(slot, grad);
  if (slot.gradients > 1) {
    slot.main_grad.add_(grad);
  } else {
    slot.main_grad.copy_(grad);
  }
  if (slot.gradients == expected_gradients_ && ++complete_slots_ == slots_.size()) complete_();
}

/// Each pass gives a parameter one gradient, and its sum over the ranks starts when all are there.
void ParameterBucket::accumulate_of_pass(Slot& slot, const at::Tensor& grad) {
  if (!main_grad_.defined()) allocate_gradient();
  slot.main_grad.copy_(grad);
  if (++complete_slots_ < slots_.size()) return;
  complete_slots_ = 0;
  complete_();
}

at::Tensor ParameterBucket::main_grad_of(const Parameter& parameter) const {
  for (const Slot& slot : slots_) {
    if (slot.parameter == &parameter) return slot.main_grad;
  }
  return {};
}

void ParameterBucket::on_complete(int gradients, std::function<void()> complete) {
  expected_gradients_ = gradients;
  complete_ = std::move(complete);
}

bool ParameterBucket::has_all_gradients() const {
  return std::ranges::all_of(
      slots_, [&](const Slot& slot) { return slot.gradients == expected_gradients_; });
}

void ParameterBucket::skip(int gradients) {
  for (Slot& slot : slots_) slot.gradients += slot.gradients > 0 ? gradients : 0;
}

void ParameterBucket::end_accumulation() {
  for (Slot& slot : slots_) {
    TORCH_INTERNAL_ASSERT(slot.gradients > 0, slot.parameter->name,
                          " got no gradient in this step");
    slot.gradients = 0;
  }
  complete_slots_ = 0;
}

std::vector<at::Tensor> ParameterBucket::slices_of(const at::Tensor& shard) const {
  std::vector<at::Tensor> slices;
  for (const ShardSlot& slot : layout_.slots)
    slices.push_back(shard.narrow(0, slot.offset, slot.elements));
  return slices;
}

at::Tensor ParameterBucket::padded_main_grad(std::size_t slot, at::ScalarType dtype) const {
  const at::Tensor flat = slots_[slot].main_grad.view(-1);
  const std::int64_t padded = layout_.slots[slot].elements * sharding_.size;
  if (padded == flat.numel()) return flat.to(dtype);
  at::Tensor copy = at::empty({padded}, flat.options().dtype(dtype));
  copy.narrow(0, 0, flat.numel()).copy_(flat);
  copy.narrow(0, flat.numel(), padded - flat.numel()).zero_();
  return copy;
}

PendingCollective ParameterBucket::start_reduce_scatter(at::ScalarType dtype) const {
  if (sharding_.size == 1) return PendingCollective(main_grad_);
  at::Tensor shard = at::empty({layout_.elements}, options_.dtype(dtype));
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < slots_.size(); ++i) inputs.push_back(padded_main_grad(i, dtype));
  return start_reduce_scatter_coalesced(std::move(inputs), slices_of(shard), sharding_)
      .with_result(std::move(shard));
}

at::Tensor ParameterBucket::shard_of_parameters(at::ScalarType dtype) const {
  const at::NoGradGuard no_grad;
  at::Tensor shard = at::zeros({layout_.elements}, options_.dtype(dtype));
  for (const ShardSlot& slot : layout_.slots) {
    if (slot.rows == 0) continue;
    if (is_fully_sharded()) {
      shard.narrow(0, slot.offset, slot.elements).copy_(slot.parameter->shard);
      continue;
    }
    const at::Tensor values =
        slot.parameter->tensor.view({-1, slot.row_elements}).narrow(0, slot.first_row, slot.rows);
    shard.narrow(0, slot.offset, slot.valid_elements())
        .view({slot.rows, slot.row_elements})
        .copy_(values);
  }
  return shard;
}

void ParameterBucket::Gather::finish() {
  pending.wait();
  for (auto& [parameter, arrived] : padded)
    parameter.copy_(arrived.narrow(0, 0, parameter.numel()));
  padded.clear();
}

ParameterBucket::Gather ParameterBucket::start_all_gather(const at::Tensor& shard) const {
  Gather gather{PendingCollective(at::Tensor()), {}};
  const std::vector<at::Tensor> slices = slices_of(shard);
  if (is_fully_sharded()) {
    for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].parameter->shard.copy_(slices[i]);
    return gather;
  }
  if (sharding_.size == 1) {
    for (std::size_t i = 0; i < slots_.size(); ++i)
      gather.padded.emplace_back(slots_[i].parameter->tensor.view(-1), slices[i]);
    return gather;
  }
  std::vector<at::Tensor> outputs;
  for (const ShardSlot& slot : layout_.slots) {
    at::Tensor place = slot.parameter->tensor.view(-1);
    const std::int64_t padded = slot.elements * sharding_.size;
    if (padded != place.numel()) {
      gather.padded.emplace_back(place, at::empty({padded}, place.options()));
      place = gather.padded.back().second;
    }
    outputs.push_back(std::move(place));
  }
  gather.pending = start_all_gather_coalesced(slices_of(shard.to(kind().tensor.scalar_type())),
                                              std::move(outputs), sharding_);
  return gather;
}

}  // namespace trellis::trainer
