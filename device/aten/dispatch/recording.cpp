#include "device/aten/dispatch/recording.h"

#include <charconv>
#include <cmath>

#include "base/log.h"
#include "device/aten/state/automatic_phase.h"

namespace trellis::device {

void Operands::add(const c10::TensorImpl& tensor, List& list, Sizes& sizes) {
  const NeuronStorage& storage = storage_of(tensor);
  list.push_back(
      Operand{storage.buffer(), owner_.views().id_of(tensor, owner_.recorder().interned())});
  sizes.push_back(static_cast<std::int64_t>(storage.nbytes()));
}

std::span<const std::int64_t> Operands::bytes() {
  input_bytes_.append(output_bytes_.begin(), output_bytes_.end());
  return {input_bytes_.data(), input_bytes_.size()};
}

void Operands::record(std::string_view schema, std::string_view scalars) {
  owner_.recorder().record(schema, scalars, {inputs_.data(), inputs_.size()},
                           {outputs_.data(), outputs_.size()}, bytes());
}

void Operands::record(RankRecorder::OpTexts texts) {
  owner_.recorder().record(texts, {inputs_.data(), inputs_.size()},
                           {outputs_.data(), outputs_.size()}, bytes());
}

std::int64_t Operands::comm_start(const CommRequest& request) {
  return owner_.recorder().comm_start(request, {inputs_.data(), inputs_.size()},
                                      {outputs_.data(), outputs_.size()}, bytes());
}

bool should_record(RankState& owner, std::string_view op) {
  if (C10_LIKELY(owner.claim())) {
    RankRecorder& recorder = owner.recorder();
    if (recorder.recording() && recorder.automatic()) recorder.enter(phase_here());
    return recorder.recording();
  }
  if (owner.recorder().recording() && owner.first_time("unbound")) {
    log_warning(c10::str(
        "operations on ", owner.device(), " from a thread that is not bound to rank ", owner.rank(),
        " run but are not recorded (the first is ", op, "): call bind_rank on the thread"));
  }
  return false;
}

namespace {

template <typename Number>
void append_number(std::string& text, Number value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  text.append(digits, end.ptr);
}

/// "1+2j", as Python writes it.
void append_complex(std::string& text, c10::complex<double> value) {
  append_number(text, value.real());
  if (!std::signbit(value.imag())) text += '+';
  append_number(text, value.imag());
  text += 'j';
}

template <typename List, typename AppendElement>
void append_list(std::string& text, const List& list, AppendElement append) {
  text += '[';
  bool first = true;
  for (const auto& element : list) {
    if (!first) text += ',';
    first = false;
    append(element);
  }
  text += ']';
}

/// False: the value has no compact text and is left out (Storage, Stream …).
bool append_value(const c10::IValue& value, bool scalar_type, std::string& text) {
  if (value.isInt()) {
    if (scalar_type) {
      text += c10::toString(static_cast<c10::ScalarType>(value.toInt()));
    } else {
      append_number(text, value.toInt());
    }
  } else if (value.isDouble()) {
    append_number(text, value.toDouble());
  } else if (value.isComplexDouble()) {
    append_complex(text, value.toComplexDouble());
  } else if (value.isBool()) {
    text += value.toBool() ? '1' : '0';
  } else if (value.isString()) {
    text += value.toStringRef();
  } else if (value.isList()) {
    append_list(text, value.toListRef(),
                [&](const c10::IValue& element) { append_value(element, scalar_type, text); });
  } else {
    return false;
  }
  return true;
}

/// A host number that LibTorch wrapped into a tensor (`x * 2.0`) is no operand on the device: it is
/// recorded as the number that it is.
bool is_host_number(const ArgInfo& arg, const c10::IValue& value) {
  if (arg.kind != ArgKind::kTensor || arg.is_out || !value.isTensor()) return false;
  const c10::TensorImpl* tensor = value.unsafeToTensorImpl();
  return tensor != c10::UndefinedTensorImpl::singleton() && tensor->is_cpu() &&
         tensor->is_wrapped_number();
}

void append_host_number(const ArgInfo& arg, const at::Tensor& tensor, std::string& text) {
  text += ' ';
  text += arg.name;
  text += '=';
  if (tensor.is_complex()) {
    append_complex(text, tensor.item<c10::complex<double>>());
  } else {
    append_number(text, at::isIntegralType(tensor.scalar_type(), true)
                            ? static_cast<double>(tensor.item<std::int64_t>())
                            : tensor.item<double>());
  }
}

}  // namespace

void append_host_numbers(const OpInfo& info, const torch::jit::Stack& stack, std::string& text) {
  const std::size_t first = stack.size() - info.args.size();
  for (std::size_t i = 0; i < info.args.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (C10_UNLIKELY(is_host_number(info.args[i], value)))
      append_host_number(info.args[i], value.toTensor(), text);
  }
}

namespace {

/// "alpha=1", after a space when `text` holds others; nothing for None and what is not recorded.
void append_scalar(const ArgInfo& arg, const c10::IValue& value, std::string& text) {
  if (arg.kind != ArgKind::kScalar || value.isNone()) return;
  const std::size_t before = text.size();
  if (before != 0) text += ' ';
  text += arg.name;
  text += '=';
  bool recorded = true;
  if (value.isIntList()) {  // by far the most frequent list; toListRef() does not fit it
    append_list(text, value.toIntVector(),
                [&](std::int64_t element) { append_number(text, element); });
  } else if (value.isDoubleList()) {
    append_list(text, value.toDoubleVector(),
                [&](double element) { append_number(text, element); });
  } else {
    recorded = append_value(value, arg.scalar_type, text);
  }
  if (!recorded) text.resize(before);
}

}  // namespace

void append_scalars(const OpInfo& info, const torch::jit::Stack& stack, std::string& text) {
  const std::size_t first = stack.size() - info.args.size();
  for (std::size_t i = 0; i < info.args.size(); ++i)
    append_scalar(info.args[i], stack[first + i], text);
}

void record_call(const OpInfo& info, const Relabeling& relabeling, const torch::jit::Stack& stack,
                 std::string_view scalars) {
  Operands operands(relabeling.owner());
  const auto& entries = relabeling.entries();
  bool written_lists = false;
  for (std::size_t i = 0; i < info.args.size(); ++i) {
    const ArgInfo& arg = info.args[i];
    written_lists |= arg.written && arg.kind != ArgKind::kTensor;
    if (arg.is_out) continue;
    const Relabeling::Range range = relabeling.range(i);
    for (std::uint32_t k = range.first; k < range.first + range.count; ++k) {
      const Relabeling::Entry& entry = entries[relabeling.order()[k]];
      if (entry.storage != nullptr) operands.add_input(*entry.device.unsafeGetTensorImpl());
    }
  }
  for (std::size_t i = stack.size() - info.num_returns; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      if (value.toTensor().defined() && value.toTensor().is_privateuseone())
        operands.add_output(*value.unsafeToTensorImpl());
    } else if (value.isTensorList()) {
      for (const c10::IValue& tensor : value.toListRef())
        operands.add_output(*tensor.unsafeToTensorImpl());
    }
  }
  if (info.num_returns == 0 ||
      written_lists) {  // changed in place and not returned: _foreach_add_, _fused_adamw_
    for (const Relabeling::Entry& entry : entries) {
      if (entry.written && entry.storage != nullptr)
        operands.add_output(*entry.device.unsafeGetTensorImpl());
    }
  }
  if (!operands.empty()) operands.record(info.name, scalars);
}

void host_reads(RankState& owner) {
  if (owner.owned_by_this_thread()) owner.recorder().host_waits();
}

void record_copy(RankState& owner, std::string_view schema, const at::Tensor& input,
                 const at::Tensor& output, std::string_view scalars) {
  if (!should_record(owner, schema)) return;
  Operands operands(owner);
  if (input.defined()) operands.add_input(*input.unsafeGetTensorImpl());
  if (output.defined()) operands.add_output(*output.unsafeGetTensorImpl());
  operands.record(schema, scalars);
}

}  // namespace trellis::device
