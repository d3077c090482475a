// A device plugin for tests: it registers the name of a device and writes down what it receives.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/runtime/plugins/fake_plugin.h"

namespace {

thread_local int current_rank = -1;
thread_local std::string error_text;
std::mutex mutex;
std::string written;  // one line per call, in the order of the calls
int64_t handles = 0;

/// The smallest guard that lets a thread name its current device.
struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  static thread_local c10::DeviceIndex index;
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    index = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::PrivateUse1, index}; }
  void setDevice(c10::Device device) const override { index = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { index = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 16; }
};
thread_local c10::DeviceIndex FakeGuard::index = 0;
const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::PrivateUse1, new FakeGuard);
const bool named = [] {
  c10::register_privateuse1_backend("neuron");
  return true;
}();

void write(const std::string& line) {
  const std::lock_guard lock(mutex);
  written += line + "\n";
}

const char* last_error(int* exit_code) {
  *exit_code = 3;
  return error_text.c_str();
}

int configure(const char*) { return 0; }

int bind_rank(int32_t rank) {
  if (std::getenv("FAKE_REFUSE_RANK") != nullptr &&
      std::atoi(std::getenv("FAKE_REFUSE_RANK")) == rank) {
    error_text = "the fake device has no core for rank " + std::to_string(rank);
    return 1;
  }
  current_rank = rank;
  return 0;
}

int64_t comm_start(const trellis_comm* comm) {
  std::string ranks;
  for (int i = 0; i < comm->num_ranks; ++i) ranks += std::to_string(comm->ranks[i]) + ",";
  const auto elements_of = [](void* const* tensors, int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += std::to_string(static_cast<const at::Tensor*>(tensors[i])->numel()) + ",";
    return text;
  };
  int64_t handle;
  {
    const std::lock_guard lock(mutex);
    handle = handles++;
  }
  write("rank " + std::to_string(current_rank) + " start kind " + std::to_string(comm->kind) + " " +
        comm->axis + " [" + ranks + "] #" + std::to_string(comm->sequence) + " elements " +
        std::to_string(comm->elements) + " type " + std::to_string(comm->scalar_type) + " in " +
        elements_of(comm->inputs, comm->num_inputs) + " out " +
        elements_of(comm->outputs, comm->num_outputs) + " -> " + std::to_string(handle));
  return handle;
}

int comm_wait(int64_t handle) {
  write("rank " + std::to_string(current_rank) + " wait " + std::to_string(handle));
  return 0;
}

int memory_report(const char** report) {  // the tests' way to read what was written
  *report = written.c_str();
  return 0;
}

}  // namespace

trellis_device_plugin_t fake_plugin() {
  trellis_device_plugin_t plugin{};
  plugin.provider = "fake";
  plugin.last_error = last_error;
  plugin.configure = configure;
  plugin.bind_rank = bind_rank;
  plugin.comm_start = comm_start;
  plugin.comm_wait = comm_wait;
  plugin.memory_report = memory_report;
  return plugin;
}
