#include "device/aten/dispatch/direct_kernels.h"

#include <atomic>
#include <bit>
#include <tuple>

#include <ATen/ops/add_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "device/aten/dispatch/as_cpu_tensors.h"
#include "device/aten/dispatch/boxed_kernel.h"
#include "device/aten/dispatch/recording.h"

namespace trellis::device {
namespace {

/// The host's view of one call's tensors, none of which is written.
class HostArguments {
 public:
  HostArguments() = default;
  HostArguments(const HostArguments&) = delete;
  HostArguments& operator=(const HostArguments&) = delete;
  ~HostArguments() {
    if (!own_thread_) return;
    for (std::size_t i = 0; i < aliases_.size(); ++i)
      storage_of(*device_[i]).keep_alias(aliases_[i]);
  }

  /// False: the boxed kernel must take the call. Nothing is made before every argument was
  /// accepted.
  bool accept(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.key_set().has_backend(c10::BackendComponent::PrivateUse1Bit))
      return false;
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!tensor.has_storage() || impl.layout() != c10::kStrided) return false;
    if (impl.dtype() == caffe2::TypeMeta::Make<c10::complex<c10::Half>>())
      return false;  // see wider_types.h
    RankState& owner = storage_of(impl).owner();
    if (owner_ == nullptr) owner_ = &owner;
    device_.push_back(&impl);
    return owner_ == &owner;
  }
  bool accept(const at::ITensorListRef& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (!accept(tensor)) return false;
    }
    return true;
  }
  template <typename Scalar>
  bool accept(const Scalar&) {
    return true;
  }
  void make_aliases() {
    own_thread_ = owner_->owned_by_this_thread();
    for (const c10::TensorImpl* tensor : device_)
      aliases_.push_back(host_alias(*tensor, storage_of(*tensor), own_thread_));
  }

  /// The arguments again, in their order, for the host's kernel.
  const at::Tensor& next(const at::Tensor&) { return aliases_[next_++]; }
  at::ITensorListRef next(const at::ITensorListRef& tensors) {
    const at::ITensorListRef aliases(at::TensorList(aliases_.data() + next_, tensors.size()));
    next_ += tensors.size();
    return aliases;
  }
  template <typename Scalar>
  const Scalar& next(const Scalar& scalar) {
    return scalar;
  }

  /// Null when no tensor was among them.
  [[nodiscard]] RankState* owner() const { return owner_; }
  [[nodiscard]] const c10::SmallVectorImpl<c10::TensorImpl*>& device() const { return device_; }

 private:
  RankState* owner_ = nullptr;
  bool own_thread_ = false;
  std::size_t next_ = 0;
  c10::SmallVector<c10::TensorImpl*, 18> device_;
  c10::SmallVector<at::Tensor, 18> aliases_;
};

using Number = TextMemo::Number;

void read_number(const at::Tensor&, Number&) {}
void read_number(const at::ITensorListRef&, Number&) {}
void read_number(std::int64_t value, Number& number) {
  number = {Number::Type::kInteger, static_cast<std::uint64_t>(value)};
}
void read_number(const at::Scalar& scalar, Number& number) {
  if (scalar.isIntegral(/*includeBool=*/false)) return read_number(scalar.toLong(), number);
  number = scalar.isFloatingPoint()
               ? Number{Number::Type::kDouble, std::bit_cast<std::uint64_t>(scalar.toDouble())}
               : Number{Number::Type::kOther, 0};
}

void push(torch::jit::Stack& stack, const at::ITensorListRef& tensors) {
  stack.emplace_back(std::vector<at::Tensor>(tensors.begin(), tensors.end()));
}
template <typename Argument>
void push(torch::jit::Stack& stack, const Argument& argument) {
  stack.emplace_back(argument);
}

std::size_t next_slot() {
  static std::atomic<std::size_t> next{0};
  const std::size_t slot = next++;
  TORCH_INTERNAL_ASSERT(slot < TextMemo::kOperators);
  return slot;
}

/// An operator of at::_ops that returns one new tensor and writes nothing.
template <typename Op, typename Schema = typename Op::schema>
struct DirectKernel;

template <typename Op, typename... Args>
struct DirectKernel<Op, at::Tensor(Args...)> {
  static const c10::OperatorHandle& handle() {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return op;
  }
  static BoxedKernel& boxed() {
    static BoxedKernel kernel(handle());
    return kernel;
  }

  static at::Tensor call(c10::DispatchKeySet keys, Args... args) {
    HostArguments arguments;
    if (C10_UNLIKELY(!(arguments.accept(args) && ...) || arguments.owner() == nullptr ||
                     in_forked_child()))
      return call_boxed(keys, args...);
    const c10::impl::ExcludeDispatchKeyGuard guard(kHandledAbove);
    RankState& owner = *arguments.owner();
    const OpInfo& info = boxed().info();
    const bool recorded = should_record(owner, info.name);
    arguments.make_aliases();
    const c10::DispatchKeySet host_keys(owner.shape_only() ? c10::DispatchKey::Meta
                                                           : c10::DispatchKey::CPU);
    // Braces: from left to right.
    const auto host_args = std::tuple<decltype(arguments.next(args))...>{arguments.next(args)...};
    at::Tensor host = std::apply(
        [&](const auto&... each) { return Op::redispatch(host_keys, each...); }, host_args);
    auto storage = adopt_storage(owner, host.unsafeGetTensorImpl()->unsafe_storage());
    at::Tensor result = device_tensor(std::move(host), std::move(storage));
    if (recorded) record(info, arguments, result, args...);
    return result;
  }

  static at::Tensor call_boxed(c10::DispatchKeySet keys, const Args&... args) {
    torch::jit::Stack stack;
    (push(stack, args), ...);
    boxed()(handle(), keys, &stack);
    return std::move(stack.back()).toTensor();
  }

  static void record(const OpInfo& info, const HostArguments& arguments, const at::Tensor& result,
                     const Args&... args) {
    static const std::size_t slot = next_slot();
    RankState& owner = *arguments.owner();
    Number number;
    (read_number(args, number), ...);
    TextMemo::Entry& known = owner.texts().entries[slot];
    const std::uint32_t generation = owner.recorder().interned().generation();
    if (C10_UNLIKELY(!known.used || !known.number.same(number) || known.generation != generation)) {
      known = {true, number, generation, texts(info, owner, args...)};
    }
    Operands operands(owner);
    for (const c10::TensorImpl* tensor : arguments.device()) operands.add_input(*tensor);
    operands.add_output(*result.unsafeGetTensorImpl());
    operands.record(known.texts);
  }

  static RankRecorder::OpTexts texts(const OpInfo& info, RankState& owner, const Args&... args) {
    torch::jit::Stack stack;
    (push(stack, args), ...);
    std::string scalars;
    append_scalars(info, stack, scalars);
    InternTable& interned = owner.recorder().interned();
    return {interned.text(info.name), interned.text(scalars)};
  }
};

template <typename Op>
void add(torch::Library& library) {
  library.impl(c10::toString(DirectKernel<Op>::handle().operator_name())
                   .substr(std::string_view("aten::").size())
                   .c_str(),
               TORCH_FN((&DirectKernel<Op>::call)));
}

}  // namespace

void register_direct_kernels(torch::Library& library) {
  add<at::_ops::add_Tensor>(library);
  add<at::_ops::sub_Tensor>(library);
  add<at::_ops::mul_Tensor>(library);
  add<at::_ops::div_Tensor>(library);
  add<at::_ops::mm>(library);
  add<at::_ops::bmm>(library);
  add<at::_ops::cat>(library);
}

}  // namespace trellis::device
