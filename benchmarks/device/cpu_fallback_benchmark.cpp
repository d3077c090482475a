// The usual way to make a device of CPU kernels, as a baseline: PyTorch's stock cpu_fallback with
// the fewest kernels that it needs. Every operator copies its tensors to the CPU and its results
// back. A process holds one PrivateUse1 device, so this is a separate program;
// device_aten_benchmark runs it and compares.
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include "benchmarks/device/small_ops.h"

namespace trellis::benchmarks {
namespace {

const c10::Device kDevice(c10::kPrivateUse1, 0);

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(c10::kPrivateUse1, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(kDevice); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                         std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type.value_or(at::kFloat));
}

at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool) {
  on_host(target).copy_(on_host(self));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  return copy_from(self, target, false);
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

void fallback(benchmark::State& state, const SmallOp& op) {
  constexpr int kRounds = 100;
  for (auto _ : state)
    alternate(kRounds, op.calls, op.on(c10::kCPU), op.on(kDevice), [] {}).report(state);
}

}  // namespace
}  // namespace trellis::benchmarks

int main(int argc, char** argv) {
  using namespace trellis::benchmarks;
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  for (const SmallOp& op : small_ops()) {
    benchmark::RegisterBenchmark(op.name, fallback, op)
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kNanosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
