#include "device/aten/dispatch/memory_kernels.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "device/aten/dispatch/as_cpu_tensors.h"
#include "device/aten/state/storage.h"

namespace trellis::device {
namespace {

RankState& owner_for(std::optional<c10::Device> device) {
  return rank_state(device.has_value() && device->has_index() ? device->index() : current_device());
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::kStrided,
                              "neuron: only strided tensors are supported, got ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor new_tensor(RankState& owner, std::int64_t nbytes, c10::ScalarType type) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(new_storage(owner, nbytes)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(type));
  return at::Tensor(std::move(impl));
}

c10::ScalarType type_or_default(std::optional<c10::ScalarType> type) {
  const c10::ScalarType chosen = type.value_or(c10::get_default_dtype_as_scalartype());
  if (C10_UNLIKELY(chosen == c10::ScalarType::ComplexHalf)) {  // as PyTorch's own allocations warn
    TORCH_WARN_ONCE("ComplexHalf support is experimental and many operators don't support it yet.");
  }
  return chosen;
}

/// In deterministic mode PyTorch fills fresh memory with NaN or the largest integer, so that a read
/// of it shows.
bool fills_fresh_memory(const RankState& owner) {
  return at::globalContext().deterministicAlgorithms() &&
         at::globalContext().deterministicFillUninitializedMemory() && !owner.shape_only();
}

at::Tensor fresh(at::Tensor tensor) {
  if (C10_UNLIKELY(fills_fresh_memory(storage_of(tensor).owner()))) {
    const at::AutoDispatchBelowADInplaceOrView guard;  // an alias never meets autograd
    at::Tensor alias = host_alias(tensor);
    at::native::fill_empty_deterministic_(alias);
  }
  return tensor;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType dtype = type_or_default(type);
  const std::size_t nbytes =
      at::detail::computeStorageNbytesContiguous(size, c10::elementSize(dtype));
  at::Tensor tensor = new_tensor(owner_for(device), static_cast<std::int64_t>(nbytes), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format.has_value() && *format != c10::MemoryFormat::Contiguous)
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return fresh(std::move(tensor));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType dtype = type_or_default(type);
  const std::size_t nbytes =
      at::detail::computeStorageNbytes(size, stride, c10::elementSize(dtype));
  at::Tensor tensor = new_tensor(owner_for(device), static_cast<std::int64_t>(nbytes), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return fresh(std::move(tensor));
}

std::int64_t bytes_required(const c10::TensorImpl& tensor) {
  return static_cast<std::int64_t>(
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                       static_cast<std::size_t>(tensor.storage_offset())));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl.set_sizes_contiguous(size);
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl.empty_tensor_restride(*format);
  }
  const std::int64_t needed = bytes_required(impl);
  const auto before = static_cast<std::int64_t>(self.storage().nbytes());
  if (self.numel() > 0 && needed > before) storage_of(self).resize(needed);
  if (C10_UNLIKELY(fills_fresh_memory(storage_of(self).owner()))) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    at::native::fill_resize_deterministic_(host_alias(self), before);
  }
  return self;
}

at::Tensor& set_storage_view(at::Tensor& self, c10::Storage source, std::int64_t offset,
                             c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);  // and takes it over
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(offset);
  // As on the CPU: a tensor that looks right already keeps its strides, and the storage its size,
  // even where the tensor reaches beyond it.
  if (impl.sizes() == size && (stride.data() == nullptr || impl.strides() == stride)) return self;
  if (stride.data() == nullptr) {
    impl.set_sizes_contiguous(size);
  } else {
    impl.set_sizes_and_strides(size, stride);
  }
  const std::int64_t needed = bytes_required(impl);
  if (self.numel() > 0 && needed > static_cast<std::int64_t>(self.storage().nbytes()))
    storage_of(self).resize(needed);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage_view(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_view(self, source.storage(), source.storage_offset(), source.sizes(),
                          source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage_view(self, c10::Storage(new_storage(rank_state(self.device().index()), 0)), 0,
                          {0}, {});
}

/// PyTorch's own answer knows the devices of its tree only; without this one module->to("neuron")
/// refuses to move parameters.
bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor& from) {
  return from.layout() == c10::kStrided;
}

/// Kernels finish before they return, but in simulated time another stream may still use the block
/// when the tensor is gone.
void record_stream(at::Tensor& self, c10::Stream stream) {
  NeuronStorage& storage = storage_of(self);
  if (storage.block() != nullptr && stream.id() != 0)
    storage.owner().recorder().memory().record_stream(*storage.block());
}

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
