#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "device/aten/dispatch/op_info.h"
#include "device/aten/state/storage.h"

namespace trellis::device {

/// A CPU (shape-only: Meta) tensor over the same bytes as `tensor`, for kernels. REQUIRES: a
/// strided tensor on `neuron`.
[[nodiscard]] at::Tensor host_alias(const at::Tensor& tensor);
/// The same; `reuse`: the one that its storage kept from the last call, where that shows the same.
/// REQUIRES with it: the rank is this thread's.
[[nodiscard]] at::Tensor host_alias(const c10::TensorImpl& tensor, NeuronStorage& storage,
                                    bool reuse);
/// A tensor on the device with the sizes and strides of `host`, over `storage`.
[[nodiscard]] at::Tensor device_tensor(at::Tensor host,
                                       c10::intrusive_ptr<c10::StorageImpl> storage);

/// One call of a kernel for host tensors on device tensors, without copies:
///
///   stack: [device tensors…] ─ enter() ─► [host aliases over the same bytes…]
///          ─ kernel ─► [results] ─ leave() ─► [device tensors]
///
/// leave() maps a returned argument to the caller's tensor, a view of an argument to a view of the
/// device's buffer and a fresh result to a new buffer, and carries resizes of written arguments
/// over.
class Relabeling {
 public:
  Relabeling(const OpInfo& info, torch::jit::Stack& stack) : info_(info), stack_(stack) {}
  Relabeling(const Relabeling&) = delete;
  Relabeling& operator=(const Relabeling&) = delete;

  /// Finds the device; throws when tensors of more than one take part.
  void enter();
  void leave();
  /// Carries over what the kernel did to its arguments; leave() includes it. For kernels that throw
  /// half way: PyTorch's resize out= first.
  void adopt_written();

  [[nodiscard]] RankState& owner() const { return *owner_; }

  struct Entry {
    at::Tensor device;                 ///< the caller's tensor
    at::Tensor alias;                  ///< what the kernel sees
    NeuronStorage* storage = nullptr;  ///< null: a CPU tensor that was passed on
    bool written = false;
  };
  [[nodiscard]] const c10::SmallVectorImpl<Entry>& entries() const { return entries_; }
  /// Arguments as the caller passed them, one range of entries per schema argument.
  struct Range {
    std::uint32_t first = 0, count = 0;
  };
  [[nodiscard]] const c10::SmallVectorImpl<std::uint32_t>& order() const {
    return order_;
  }  ///< entry per tensor argument, in call order
  [[nodiscard]] Range range(std::size_t argument) const { return ranges_[argument]; }

 private:
  void find_owner(std::size_t first);
  bool consider_owner(const c10::IValue& value);
  at::Tensor alias_of(at::Tensor tensor, const ArgInfo& arg);
  void relabel_list(c10::IValue& value, const ArgInfo& arg);
  void relabel_optional_list(c10::IValue& value, const ArgInfo& arg);
  at::Tensor make_alias(const ArgInfo& arg, Entry& entry);
  void adopt(Entry& entry);
  void count_versions();
  at::Tensor map_result(at::Tensor result);

  struct Fresh {
    c10::Storage host;  ///< kept, so that its address stays taken
    c10::intrusive_ptr<c10::StorageImpl> device;
  };
  const OpInfo& info_;
  torch::jit::Stack& stack_;
  RankState* owner_ = nullptr;
  bool own_thread_ =
      false;  ///< the calling thread owns the rank: storages' kept aliases are its to use
  c10::SmallVector<Entry, 18> entries_;  // room for a list: growing costs more than the stack
  c10::SmallVector<std::uint32_t, 20> order_;
  c10::SmallVector<Range, 12> ranges_;
  c10::SmallVector<Fresh, 2> fresh_;
};

}  // namespace trellis::device
