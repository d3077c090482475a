#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/aten/hooks/events.h"
#include "device/aten/state/generator.h"
#include "device/aten/state/pinned_memory.h"
#include "device/aten/state/rank_state.h"
#include "device/aten/state/storage.h"
#include "device/aten/state/streams.h"

/// Hooks that LibTorch's device-independent code calls: current device, streams, events,
/// generators, resizing. Kernels finish before they return: synchronising never blocks the host,
/// but the simulated clock is notified.
namespace trellis::device {
namespace {

void host_waits(c10::DeviceIndex device, int stream) {
  RankState& owner = rank_state(device < 0 ? current_device() : device);
  if (owner.owned_by_this_thread()) owner.recorder().host_waits(stream);
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
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(available_devices());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    return {};
  }  // all types, as the CPU kernels have them

  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return pool_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return pool_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return check_stream(stream), true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    check_stream(stream);
    host_waits(stream.device_index(), static_cast<int>(stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { host_waits(index, -1); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    events::record(event, stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    events::destroy(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    events::block(event, stream);
  }
  bool queryEvent(void* event) const override { return events::check(event), true; }
  void synchronizeEvent(void* event) const override { events::synchronize(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return events::elapsed_ms(start, end);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard)

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return available_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return index >= 0 && index < available_devices();
  }
  void init() const override { rank_state(current_device()); }  // names the missing configure()
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(available_devices());
  }
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
    return index >= 0 && index < available_devices() ? exchangeDevice(index) : current_device();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return rank_state(index < 0 ? current_device() : index).generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return make_generator(index < 0 ? current_device() : index);
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return {c10::kPrivateUse1, current_device()};
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t nbytes) const override {
    static_cast<NeuronStorage*>(storage.unsafeGetStorageImpl())
        ->resize(static_cast<std::int64_t>(nbytes));
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
