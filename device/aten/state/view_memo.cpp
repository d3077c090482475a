#include "device/aten/state/view_memo.h"

#include <algorithm>

#include <c10/util/Exception.h>

namespace trellis::device {

RecordedType record_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float: return {DType::kFp32};
    case c10::ScalarType::BFloat16: return {DType::kBf16};
    case c10::ScalarType::Half: return {DType::kFp16};
    case c10::ScalarType::Double: return {DType::kFp64};
    case c10::ScalarType::Float8_e4m3fn: return {DType::kFp8E4M3};
    case c10::ScalarType::Float8_e5m2: return {DType::kFp8E5M2};
    case c10::ScalarType::Float8_e4m3fnuz: return {DType::kFp8E4M3, HostType::kFloat8Fnuz};
    case c10::ScalarType::Float8_e5m2fnuz: return {DType::kFp8E5M2, HostType::kFloat8Fnuz};
    case c10::ScalarType::Float8_e8m0fnu: return {DType::kUInt8, HostType::kFloat8Scale};
    case c10::ScalarType::Long: return {DType::kInt64};
    case c10::ScalarType::Int: return {DType::kInt32};
    case c10::ScalarType::Short: return {DType::kInt16};
    case c10::ScalarType::Char: return {DType::kInt8};
    case c10::ScalarType::Byte: return {DType::kUInt8};
    case c10::ScalarType::Bool: return {DType::kBool};
    case c10::ScalarType::UInt64: return {DType::kInt64, HostType::kUnsigned};
    case c10::ScalarType::UInt32: return {DType::kInt32, HostType::kUnsigned};
    case c10::ScalarType::UInt16: return {DType::kInt16, HostType::kUnsigned};
    case c10::ScalarType::ComplexHalf: return {DType::kFp16, HostType::kComplex};
    case c10::ScalarType::ComplexFloat: return {DType::kFp32, HostType::kComplex};
    case c10::ScalarType::ComplexDouble: return {DType::kFp64, HostType::kComplex};
    default: break;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "neuron: tensors of type ", type,
      " cannot be recorded; expected a floating-point, complex, integer or bool type: ",
      "cast the tensor, or configure the device with record=false");
}

TensorView record_view(const c10::TensorImpl& tensor) {
  const RecordedType type = record_type(c10::typeMetaToScalarType(tensor.dtype()));
  TensorView view{tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), type.dtype,
                  type.host};
  if (type.host != HostType::kComplex) return view;
  for (std::int64_t& stride : view.strides) stride *= 2;
  view.offset *= 2;
  view.sizes.push_back(2);
  view.strides.push_back(1);
  return view;
}

namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull;
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

}  // namespace

std::uint32_t ViewMemo::id_of(const c10::TensorImpl& tensor, InternTable& table) {
  if (C10_UNLIKELY(generation_ != table.generation())) {
    entries_ = {};
    generation_ = table.generation();
  }
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  const std::int64_t offset = tensor.storage_offset();
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  std::uint64_t hash = mix(static_cast<std::uint64_t>(type), static_cast<std::uint64_t>(offset));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    hash = mix(hash, static_cast<std::uint64_t>(sizes[i]) ^
                         (static_cast<std::uint64_t>(strides[i]) << 32));
  }
  Entry& entry = entries_[hash & (kEntries - 1)];
  if (entry.used && entry.type == type && entry.offset == offset &&
      same_numbers(sizes, entry.sizes) && same_numbers(strides, entry.strides)) {
    return entry.id;
  }
  entry.id = table.view(record_view(tensor));
  entry.sizes.assign(sizes.begin(), sizes.end());
  entry.strides.assign(strides.begin(), strides.end());
  entry.offset = offset;
  entry.type = type;
  entry.used = true;
  return entry.id;
}

}  // namespace trellis::device
