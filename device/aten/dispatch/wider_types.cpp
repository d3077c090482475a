#include "device/aten/dispatch/wider_types.h"

#include <algorithm>
#include <array>

#include <ATen/ops/empty.h>
#include <c10/core/UndefinedTensorImpl.h>

namespace trellis::device {
namespace {

using enum c10::ScalarType;

constexpr std::array kHalf{Widening{Half, Float}};
constexpr std::array kReduced{Widening{Half, Float}, Widening{BFloat16, Float}};
constexpr std::array kComplexHalf{Widening{ComplexHalf, ComplexFloat}};
constexpr std::array kHalves{Widening{ComplexHalf, ComplexFloat}, Widening{Half, Float}};
constexpr std::array kBoolAsBytes{Widening{Bool, Byte}};
constexpr std::array kTrace{Widening{Bool, Long, /*back=*/false},
                            Widening{ComplexHalf, ComplexFloat}};
constexpr std::array kIntegers{Widening{Byte, Double}, Widening{Char, Double},
                               Widening{Short, Double}, Widening{Int, Double},
                               Widening{Long, Double}};

struct Row {
  std::string_view op;
  std::span<const Widening> widenings;
};

/// tests/conformance/families/wider.py has all pairs of PyTorch's operator database. Backward
/// operators are next to theirs.
constexpr std::array kRows{
    Row{"histc", kIntegers},
    Row{"abs", kBoolAsBytes},
    Row{"trace", kTrace},
    Row{"avg_pool3d", kReduced},
    Row{"avg_pool3d_backward", kReduced},
    Row{"_upsample_bilinear2d_aa", kReduced},
    Row{"_upsample_bilinear2d_aa_backward", kReduced},
    Row{"multi_margin_loss", kReduced},
    Row{"multi_margin_loss_backward", kReduced},
    Row{"multilabel_margin_loss_forward", kReduced},
    Row{"multilabel_margin_loss_backward", kReduced},
    Row{"rrelu_with_noise", kHalf},
    Row{"rrelu_with_noise_backward", kHalf},
    Row{"_fft_c2c", kHalves},
    Row{"_fft_c2r", kHalves},
    Row{"_fft_r2c", kHalves},
    Row{"round", kHalf},
    Row{"polygamma", kHalf},
};

}  // namespace

std::span<const Widening> widenings_of(std::string_view op) {
  constexpr std::string_view kAten = "aten::";
  if (op.starts_with(kAten)) op.remove_prefix(kAten.size());
  op = op.substr(0, op.find('.'));
  const auto is = [op](const Row& row) {
    return row.op == op ||
           (op.size() == row.op.size() + 1 && op.ends_with('_') && op.starts_with(row.op));
  };
  const auto row = std::find_if(kRows.begin(), kRows.end(), is);
  // CUDA has complex32 nearly everywhere, the CPU next to nowhere.
  return row == kRows.end() ? std::span<const Widening>(kComplexHalf) : row->widenings;
}

namespace {

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
