#pragma once

#include <cstdint>
#include <typeinfo>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "device/aten/state/rank_state.h"

namespace trellis::device {

/// A buffer on the emulated device: host memory in materialised mode, nothing in shape-only mode;
/// identity and accounting in both.
class NeuronStorage final : public c10::StorageImpl {
 public:
  /// Charges the owner; throws c10::OutOfMemoryError when it does not fit.
  NeuronStorage(RankState& owner, std::int64_t nbytes, c10::DataPtr data, c10::Allocator* allocator,
                bool resizable = true);
  ~NeuronStorage() override;
  void release_resources() override;

  [[nodiscard]] std::uint64_t buffer() const { return charge_.buffer; }
  [[nodiscard]] RankState& owner() const { return owner_; }
  /// Its place in the modelled memory; nullptr: it has no bytes.
  [[nodiscard]] MemoryBlock* block() const { return charge_.block; }
  [[nodiscard]] BufferCategory category() const {
    return charge_.block != nullptr ? charge_.block->category : category_;
  }
  void set_category(BufferCategory category);

  /// A CPU storage (shape-only: a Meta storage) over the same bytes; kernels see it in place of
  /// this one. It stays valid while this storage lives, and a kernel may resize it: see
  /// adopt_resize.
  c10::intrusive_ptr<c10::StorageImpl> host_view();
  /// The same without a reference; null: no one has asked for it yet.
  c10::StorageImpl* known_host_view();
  /// REQUIRES: `host` is over this storage's bytes, which it does not own; no one else uses this
  /// storage yet.
  void set_host_view(c10::intrusive_ptr<c10::StorageImpl> host) {
    host_.store(host.release(), std::memory_order_release);
  }
  [[nodiscard]] bool is_host_view(const c10::StorageImpl* storage) const {
    return storage == host_.load(std::memory_order_acquire);
  }
  /// The tensor through which a kernel saw this storage last, for the next one that sees it in the
  /// same way: making one costs as much as a small kernel. Undefined when there is none. REQUIRES:
  /// owner().owned_by_this_thread().
  at::Tensor take_alias() noexcept { return std::move(alias_); }
  /// Keeps `alias` unless another owner holds it too; a Python object (of a Meta kernel) holds more
  /// of a tensor than its count shows. REQUIRES: as take_alias().
  void keep_alias(at::Tensor& alias) noexcept {
    if (C10_LIKELY(alias.use_count() == 1 &&
                   alias.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr))
      alias_ = std::move(alias);
  }
  /// Bytes that a lazy clone shares become this storage's own: to be called before they are
  /// written. The views that kernels have of them follow.
  void before_write() {
    (void)mutable_data();
    (void)known_host_view();
  }
  /// Takes over what a kernel did to the host view: new bytes after a resize. Cheap when nothing
  /// happened.
  void adopt_resize();

  /// Lets the storage hold `block`, which no one else holds. REQUIRES: it was made with 0
  /// bytes, in shape-only mode.
  void take_block(MemoryBlock& block, std::int64_t nbytes);

  /// Grows or shrinks the buffer, keeping the common prefix.
  void resize(std::int64_t nbytes);

 private:
  void release() noexcept;

  RankState& owner_;
  RankState::Charge charge_;
  BufferCategory category_ = BufferCategory::kTemporary;  ///< while there is no block
  bool released_ = false;
  std::atomic<c10::StorageImpl*> host_{nullptr};  ///< one reference is ours
  at::Tensor alias_;
};

/// LibTorch made the storage by itself (from_blob on this device, as torch.save does): from now on
/// the tensor has one of ours, over the same bytes.
NeuronStorage& adopt_foreign_storage(const c10::TensorImpl& tensor);
/// The storage of a tensor on `neuron`. REQUIRES: tensor.device() is neuron and it has storage.
[[nodiscard]] inline NeuronStorage& storage_of(const c10::TensorImpl& tensor) {
  c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(typeid(storage) != typeid(NeuronStorage))) return adopt_foreign_storage(tensor);
  return static_cast<NeuronStorage&>(storage);
}
[[nodiscard]] inline NeuronStorage& storage_of(const at::Tensor& tensor) {
  return storage_of(*tensor.unsafeGetTensorImpl());
}

/// A fresh buffer of `nbytes` on the device of `owner`.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> new_storage(RankState& owner,
                                                               std::int64_t nbytes);
/// Moves the bytes that a kernel allocated on the CPU (or that a Meta kernel did not) onto the
/// device, without copying.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> adopt_storage(RankState& owner,
                                                                 const c10::Storage& host);

}  // namespace trellis::device
