#include "device/aten/dispatch/as_cpu_tensors.h"

#include <algorithm>

#include <ATen/core/List.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "device/aten/state/cpu_generator.h"
#include "device/aten/state/generator.h"

namespace trellis::device {
namespace {

/// Beyond this many tensors (fused lists) the same tensor may get two aliases: they share storage,
/// only identity is lost.
constexpr std::size_t kIdentitySearch = 16;

/// Kernels that PyTorch lets see them (copies, views, products) do the conjugating or negating
/// themselves.
constexpr c10::DispatchKeySet kLazyBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

c10::DispatchKeySet host_keys(const c10::TensorImpl& tensor, c10::DispatchKey key) {
  return c10::DispatchKeySet(key) | (tensor.key_set() & kLazyBits);
}

at::Tensor host_tensor(const c10::TensorImpl& tensor, c10::intrusive_ptr<c10::StorageImpl> storage,
                       c10::DispatchKey key) {
  // The view constructor takes the key set verbatim and makes no version counter: an alias never
  // meets autograd.
  auto alias =
      c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(std::move(storage)),
                                           host_keys(tensor, key), tensor.dtype());
  alias->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (C10_UNLIKELY(tensor.is_wrapped_number())) alias->set_wrapped_number(true);
  return at::Tensor(std::move(alias));
}

c10::DispatchKey host_key(const RankState& owner) {
  return owner.shape_only() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
}

c10::Device host_device(const RankState& owner) {
  return owner.shape_only() ? c10::kMeta : c10::kCPU;
}

[[noreturn]] void two_devices(c10::Device first, c10::Device second, const ArgInfo& arg,
                              const OpInfo& info) {
  const bool indexes = std::any_of(info.args.begin(), info.args.end(), [](const ArgInfo& a) {
    return a.kind == ArgKind::kOptionalTensorList;
  });
  TORCH_CHECK(!indexes, "indices should be either on cpu or on the same device as the indexed ",
              "tensor (", arg.name == "self" ? second : first, ")");
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but found at least two devices, ",
      first, " and ", second, "! (when checking argument ", arg.name, " of ", info.name, ")");
}

bool same_layout(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  return a.storage_offset() == b.storage_offset() && same_numbers(a.sizes(), b.sizes()) &&
         same_numbers(a.strides(), b.strides());
}

/// True if `alias` is the tensor that host_tensor() would make.
bool shows(const c10::TensorImpl& alias, const c10::TensorImpl& tensor,
           const c10::StorageImpl* storage, c10::DispatchKey key) {
  return alias.unsafe_storage().unsafeGetStorageImpl() == storage &&
         alias.key_set() == host_keys(tensor, key) && alias.dtype() == tensor.dtype() &&
         same_layout(alias, tensor) && !tensor.is_wrapped_number() && !alias.is_wrapped_number();
}

}  // namespace

at::Tensor host_alias(const at::Tensor& tensor) {
  NeuronStorage& storage = storage_of(tensor);
  return host_tensor(*tensor.unsafeGetTensorImpl(), storage.host_view(), host_key(storage.owner()));
}

at::Tensor host_alias(const c10::TensorImpl& tensor, NeuronStorage& storage, bool reuse) {
  const c10::DispatchKey key = host_key(storage.owner());
  if (reuse) {
    at::Tensor known = storage.take_alias();
    if (known.defined() &&
        shows(*known.unsafeGetTensorImpl(), tensor, storage.known_host_view(), key))
      return known;
  }
  return host_tensor(tensor, storage.host_view(), key);
}

at::Tensor device_tensor(at::Tensor host, c10::intrusive_ptr<c10::StorageImpl> storage) {
  c10::TensorImpl& from = *host.unsafeGetTensorImpl();
  // A fresh result that no one else holds becomes the device's tensor itself. (An alias's own views
  // lack the autograd keys.)
  if (C10_LIKELY(host.use_count() == 1 && (from.key_set().has(c10::DispatchKey::ADInplaceOrView) ||
                                           c10::InferenceMode::is_enabled()))) {
    const c10::Device device = storage->device();
    from.set_storage_keep_dtype(c10::Storage(std::move(storage)));
    from._change_backend_component_keys(device);
    return host;
  }
  const c10::DispatchKeySet keys =
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | (from.key_set() & kLazyBits);
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)), keys, from.dtype());
  impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (C10_UNLIKELY(from.is_wrapped_number())) impl->set_wrapped_number(true);
  return at::Tensor(std::move(impl));
}

bool Relabeling::consider_owner(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const c10::TensorImpl* tensor = value.unsafeToTensorImpl();
  if (!tensor->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit)) return false;
  owner_ = &rank_state(tensor->device().index());
  return true;
}

void Relabeling::find_owner(std::size_t first) {
  for (std::size_t i = 0; i < info_.args.size(); ++i) {
    const c10::IValue& value = stack_[first + i];
    const ArgKind kind = info_.args[i].kind;
    if (kind == ArgKind::kTensor) {
      if (consider_owner(value)) return;
    } else if ((kind == ArgKind::kTensorList || kind == ArgKind::kOptionalTensorList) &&
               value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (consider_owner(element)) return;
      }
    }
  }
  c10::DeviceIndex index = current_device();  // a factory function
  for (std::size_t i = 0; i < info_.args.size(); ++i) {
    const c10::IValue& value = stack_[first + i];
    if (info_.args[i].kind == ArgKind::kDevice && value.isDevice() && value.toDevice().has_index())
      index = value.toDevice().index();
    if (info_.args[i].kind == ArgKind::kGenerator && value.isGenerator())
      index = value.toGenerator().device().index();
  }
  owner_ = &rank_state(index);
}

at::Tensor Relabeling::make_alias(const ArgInfo& arg, Entry& entry) {
  const at::Tensor& tensor = entry.device;
  const c10::Device device = tensor.device();
  if (C10_LIKELY(device == owner_->device())) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.has_storage() && tensor.layout() == c10::kStrided,
                                "neuron: ", info_.name, " got a ", tensor.layout(), " tensor as ",
                                arg.name, "; only strided tensors are supported");
    entry.storage = &storage_of(tensor);
    // Forward-mode derivatives that are zero have no bytes (`dot` is expected to look for them).
    if (C10_UNLIKELY(tensor._is_zerotensor()))
      return at::zeros(tensor.sizes(), tensor.options().device(host_device(*owner_)));
    if (arg.written || arg.changed) entry.storage->before_write();
    return host_alias(*tensor.unsafeGetTensorImpl(), *entry.storage, own_thread_);
  }
  if (!device.is_cpu() || !(tensor.dim() == 0 || arg.cpu_allowed) || arg.written)
    two_devices(owner_->device(), device, arg, info_);
  // A number that LibTorch wrapped has a value even without data, and Python's Meta kernels want it
  // on the CPU.
  if (!owner_->shape_only() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  auto meta = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      c10::SymInt(static_cast<std::int64_t>(tensor.storage().nbytes())),
      c10::DataPtr(nullptr, c10::kMeta), c10::GetAllocator(c10::kMeta), true);
  return host_tensor(*tensor.unsafeGetTensorImpl(), std::move(meta), c10::DispatchKey::Meta);
}

at::Tensor Relabeling::alias_of(at::Tensor tensor, const ArgInfo& arg) {
  if (!tensor.defined()) return tensor;
  // Where nothing is written, two aliases of one tensor are as good as one.
  const std::size_t search = info_.writes ? std::min(entries_.size(), kIdentitySearch) : 0;
  for (std::size_t i = 0; i < search; ++i) {
    Entry& entry = entries_[i];
    if (!entry.device.is_same(tensor)) continue;
    order_.push_back(static_cast<std::uint32_t>(i));
    if (arg.written && entry.storage != nullptr) entry.storage->before_write();
    entry.written |= arg.written;
    return entry.alias;
  }
  order_.push_back(static_cast<std::uint32_t>(entries_.size()));
  Entry& entry = entries_.emplace_back();
  entry.device = std::move(tensor);
  entry.written = arg.written;
  entry.alias = make_alias(arg, entry);
  return entry.alias;
}

void Relabeling::relabel_list(c10::IValue& value, const ArgInfo& arg) {
  c10::List<at::Tensor> tensors = std::move(value).toTensorList();
  if (tensors.use_count() > 1)
    tensors = tensors.copy();  // the caller's own; a list that boxing made is ours to change
  entries_.reserve(entries_.size() + tensors.size());
  order_.reserve(order_.size() + tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors.set(i, alias_of(tensors.extract(i), arg));
  value = std::move(tensors);
}

void Relabeling::relabel_optional_list(c10::IValue& value, const ArgInfo& arg) {
  c10::List<std::optional<at::Tensor>> aliases;
  const c10::ArrayRef<c10::IValue> tensors = value.toListRef();
  aliases.reserve(tensors.size());
  for (const c10::IValue& tensor : tensors) {
    if (tensor.isTensor()) {
      aliases.push_back(alias_of(tensor.toTensor(), arg));
    } else {
      aliases.push_back(std::nullopt);
    }
  }
  value = std::move(aliases);
}

void Relabeling::enter() {
  const std::size_t first = stack_.size() - info_.args.size();
  find_owner(first);
  own_thread_ = owner_->owned_by_this_thread();
  for (std::size_t i = 0; i < info_.args.size(); ++i) {
    const ArgInfo& arg = info_.args[i];
    c10::IValue& value = stack_[first + i];
    const auto before = static_cast<std::uint32_t>(order_.size());
    switch (arg.kind) {
      case ArgKind::kTensor:
        if (value.isTensor()) value = alias_of(std::move(value).toTensor(), arg);
        break;
      case ArgKind::kTensorList:
        if (value.isList()) relabel_list(value, arg);
        break;
      case ArgKind::kOptionalTensorList:
        if (value.isList()) relabel_optional_list(value, arg);
        break;
      case ArgKind::kGenerator:
        value = cpu_generator(value.isGenerator() ? value.toGenerator() : at::Generator(),
                              owner_->device());
        break;
      case ArgKind::kDevice:
        value = c10::Device(owner_->shape_only() ? c10::kMeta : c10::kCPU);
        break;
      case ArgKind::kScalar:
      case ArgKind::kUnrecorded: break;
    }
    ranges_.push_back({before, static_cast<std::uint32_t>(order_.size()) - before});
  }
}

void Relabeling::adopt(Entry& entry) {
  if (entry.storage == nullptr) return;
  c10::TensorImpl& alias = *entry.alias.unsafeGetTensorImpl();
  c10::TensorImpl& device = *entry.device.unsafeGetTensorImpl();
  c10::StorageImpl* const host = alias.unsafe_storage().unsafeGetStorageImpl();
  if (C10_LIKELY(entry.storage->is_host_view(host))) {
    entry.storage->adopt_resize();
  } else {  // the kernel gave the argument another storage
    device.set_storage_keep_dtype(c10::Storage(adopt_storage(*owner_, alias.unsafe_storage())));
    entry.storage = &storage_of(device);
  }
  if (C10_UNLIKELY(!same_layout(alias, device)))
    device.set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  if (C10_UNLIKELY((alias.key_set() & kLazyBits) != (device.key_set() & kLazyBits))) {
    device._set_conj(alias.is_conj());
    device._set_neg(alias.is_neg());
  }
}

void Relabeling::count_versions() {
  for (Entry& entry : entries_) {
    if (entry.written) entry.device.unsafeGetTensorImpl()->bump_version();
  }
}

void Relabeling::adopt_written() {
  if (!info_.writes) return;
  for (Entry& entry : entries_) {
    if (entry.written) adopt(entry);
  }
}

at::Tensor Relabeling::map_result(at::Tensor result) {
  if (!result.defined()) return result;
  c10::TensorImpl* const host = result.unsafeGetTensorImpl();
  for (const Entry& entry : entries_) {
    if (entry.alias.unsafeGetTensorImpl() == host) return entry.device;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided && result.has_storage(),
                              "neuron: ", info_.name, " returned a ", result.layout(),
                              " tensor; only strided tensors are supported");
  c10::StorageImpl* const storage = host->unsafe_storage().unsafeGetStorageImpl();
  for (const Entry& entry : entries_) {
    if (entry.storage != nullptr && entry.storage->is_host_view(storage)) {
      return device_tensor(
          std::move(result),
          c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(entry.storage));
    }
  }
  for (const Fresh& fresh : fresh_) {
    if (fresh.host.unsafeGetStorageImpl() == storage)
      return device_tensor(std::move(result), fresh.device);
  }
  auto adopted = adopt_storage(*owner_, host->unsafe_storage());
  if (info_.several_results) fresh_.push_back({host->unsafe_storage(), adopted});
  return device_tensor(std::move(result), std::move(adopted));
}

void Relabeling::leave() {
  adopt_written();
  if (C10_UNLIKELY(info_.counts_versions)) count_versions();
  for (std::size_t i = stack_.size() - info_.num_returns; i < stack_.size(); ++i) {
    c10::IValue& value = stack_[i];
    if (value.isTensor()) {
      value = map_result(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> mapped;
      for (const c10::IValue& tensor : value.toListRef())
        mapped.push_back(map_result(tensor.toTensor()));
      value = std::move(mapped);
    }
  }
  if (!own_thread_) return;
  for (Entry& entry : entries_) {
    if (entry.storage != nullptr) entry.storage->keep_alias(entry.alias);
  }
}

}  // namespace trellis::device
