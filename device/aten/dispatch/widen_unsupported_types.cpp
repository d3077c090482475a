#include "device/aten/dispatch/widen_unsupported_types.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/core/UndefinedTensorImpl.h>

namespace trellis::device {
namespace {

using enum c10::ScalarType;

const Widening* widening_of(const OpInfo& info, c10::ScalarType type) {
  const auto found = std::find_if(info.widenings.begin(), info.widenings.end(),
                                  [type](const Widening& each) { return each.from == type; });
  return found == info.widenings.end() ? nullptr : &*found;
}

const Widening* widening_of(const OpInfo& info, const c10::IValue& value) {
  if (!value.isTensor()) return nullptr;
  const c10::TensorImpl* const tensor = value.unsafeToTensorImpl();
  if (tensor == c10::UndefinedTensorImpl::singleton()) return nullptr;
  return widening_of(info, c10::typeMetaToScalarType(tensor->dtype()));
}

}  // namespace

const Widening* widening_for(const OpInfo& info, const torch::jit::Stack& stack) {
  for (std::size_t i = stack.size() - info.args.size(); i < stack.size(); ++i) {
    if (const Widening* const found = widening_of(info, stack[i])) return found;
    if (!stack[i].isTensorList()) continue;
    for (const c10::IValue& each : stack[i].toListRef()) {
      if (const Widening* const found = widening_of(info, each)) return found;
    }
  }
  return nullptr;
}

WideCall::WideCall(const OpInfo& info, const Widening& used, const torch::jit::Stack& stack)
    : info_(info),
      used_(used),
      base_(stack.size() - info.args.size()),
      arguments_(stack.begin() + static_cast<std::ptrdiff_t>(base_), stack.end()) {}

at::Tensor WideCall::widen(const at::Tensor& tensor, const ArgInfo& arg) {
  if (!tensor.defined()) return tensor;
  const Widening* const widening = widening_of(info_, tensor.scalar_type());
  if (widening == nullptr) return tensor;
  const auto options = tensor.options().dtype(widening->to);
  at::Tensor wide = arg.is_out ? at::empty({0}, options) : tensor.to(widening->to);
  if (arg.written) written_.push_back({tensor, wide});
  return wide;
}

c10::IValue WideCall::widen(const c10::IValue& value, const ArgInfo& arg) {
  if (value.isTensor()) return widen(value.toTensor(), arg);
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = widen(tensor, arg);
    return tensors;
  }
  if (arg.scalar_type && value.isInt()) {
    const auto type = static_cast<c10::ScalarType>(value.toInt());
    if (const Widening* const widening = widening_of(info_, type))
      return static_cast<std::int64_t>(widening->to);
  }
  return value;
}

void WideCall::enter(torch::jit::Stack& stack) {
  stack.resize(base_);
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    stack.push_back(widen(arguments_[i], info_.args[i]));
  }
}

at::Tensor WideCall::result(const at::Tensor& computed) const {
  for (const Written& each : written_) {
    if (computed.is_same(each.wide)) return each.own;
  }
  if (!computed.defined() || !used_.back) return computed;
  const c10::ScalarType type = computed.scalar_type();
  if (type == used_.to) return computed.to(used_.from);
  // A transform makes complex numbers of real ones, or the other way.
  if (c10::isComplexType(used_.from) && type == c10::toRealValueType(used_.to)) {
    return computed.to(c10::toRealValueType(used_.from));
  }
  if (used_.from == Half && type == c10::toComplexType(used_.to))
    return computed.to(c10::toComplexType(used_.from));
  return computed;
}

void WideCall::leave(torch::jit::Stack& stack) const {
  for (const Written& each : written_) {
    if (each.own.sizes() != each.wide.sizes()) each.own.resize_(each.wide.sizes());
    each.own.copy_(each.wide);
  }
  for (std::size_t i = stack.size() - info_.num_returns; i < stack.size(); ++i) {
    if (stack[i].isTensor()) stack[i] = result(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    std::vector<at::Tensor> tensors = stack[i].toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = result(tensor);
    stack[i] = tensors;
  }
}

}  // namespace trellis::device
