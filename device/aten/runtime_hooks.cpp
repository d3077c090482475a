#include <chrono>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/aten/generator.h"
#include "device/aten/rank_state.h"
#include "device/aten/storage.h"

/// What LibTorch's device-independent code asks of a device: current device, streams, events, generators, resizing.
/// Kernels finish before they return, so there is one stream and every event has happened when it is recorded.
namespace trellis::device {
namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point recorded{};
};

c10::Stream default_stream(c10::Device device) {
  return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : c10::Device(c10::kPrivateUse1, current_device()));
}

struct NeuronGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current_device()}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_privateuseone(), "neuron: cannot make ", device, " the current device");
    if (!device.has_index() || device.index() == current_device()) return;
    rank_state(device.index());  // names the valid indices
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }  // all types, as the CPU kernels have them

  c10::Stream getStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return default_stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return default_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return default_stream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->recorded = Clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "neuron: elapsed time needs two events that were both recorded");
    return std::chrono::duration<double, std::milli>(static_cast<Event*>(end)->recorded - static_cast<Event*>(start)->recorded).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard)

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return index >= 0 && index < device_count(); }
  void init() const override { rank_state(current_device()); }  // names the missing configure()
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    rank_state(index);
    set_current_device(index);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_device();
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index >= 0 && index < device_count() ? exchangeDevice(index) : current_device();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return rank_state(index < 0 ? current_device() : index).generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index < 0 ? current_device() : index); }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kPrivateUse1, current_device()}; }
  // Device memory is host memory: a CPU tensor needs no pinning to be copied.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t nbytes) const override {
    static_cast<NeuronStorage*>(storage.unsafeGetStorageImpl())->resize(static_cast<std::int64_t>(nbytes));
  }
};

struct RegisterRuntime {
  RegisterRuntime() {
    c10::register_privateuse1_backend("neuron");
    at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  }
} const register_runtime;

}  // namespace
}  // namespace trellis::device
