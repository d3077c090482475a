#include "device/aten/memory_kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "device/aten/relabel.h"
#include "device/aten/storage.h"

namespace trellis::device {
namespace {

RankState& owner_for(std::optional<c10::Device> device) {
  return rank_state(device.has_value() && device->has_index() ? device->index() : current_device());
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::kStrided, "neuron: only strided tensors are supported, got ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor new_tensor(RankState& owner, std::int64_t nbytes, c10::ScalarType type) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(new_storage(owner, nbytes)),
                                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(type));
  return at::Tensor(std::move(impl));
}

c10::ScalarType type_or_default(std::optional<c10::ScalarType> type) { return type.value_or(c10::get_default_dtype_as_scalartype()); }

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType dtype = type_or_default(type);
  const std::size_t nbytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(dtype));
  at::Tensor tensor = new_tensor(owner_for(device), static_cast<std::int64_t>(nbytes), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format.has_value() && *format != c10::MemoryFormat::Contiguous) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return tensor;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> type,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType dtype = type_or_default(type);
  const std::size_t nbytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(dtype));
  at::Tensor tensor = new_tensor(owner_for(device), static_cast<std::int64_t>(nbytes), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

std::int64_t bytes_behind(const c10::TensorImpl& tensor) {
  return static_cast<std::int64_t>(at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                                    static_cast<std::size_t>(tensor.storage_offset())));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl.set_sizes_contiguous(size);
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl.empty_tensor_restride(*format);
  }
  const std::int64_t needed = bytes_behind(impl);
  if (self.numel() > 0 && needed > static_cast<std::int64_t>(self.storage().nbytes())) storage_of(self).resize(needed);
  return self;
}

at::Tensor& set_storage_view(at::Tensor& self, c10::Storage source, std::int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\". This is no longer allowed; the devices must match.");
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(source));
  if (stride.data() == nullptr) {
    impl.set_sizes_contiguous(size);
    impl.set_storage_offset(offset);
  } else {
    impl.set_sizes_and_strides(size, stride, offset);
  }
  const std::int64_t needed = bytes_behind(impl);
  if (self.numel() > 0 && needed > static_cast<std::int64_t>(self.storage().nbytes())) storage_of(self).resize(needed);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage_view(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_view(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage_view(self, c10::Storage(new_storage(rank_state(self.device().index()), 0)), 0, {0}, {});
}

/// PyTorch's own answer knows the devices of its tree only; without this one module->to("neuron") refuses to move parameters.
bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor& from) { return from.layout() == c10::kStrided; }

void record_stream(at::Tensor&, c10::Stream) {}  // kernels finish before they return

at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

}  // namespace

void register_memory_kernels(torch::Library& library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(view_as_complex));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_view));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  library.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace trellis::device
