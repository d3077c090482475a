#include "device/torch_device/devices.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/StringUtil.h>
#include <torch/version.h>

#include "base/error.h"

namespace trellis::device {
namespace {

/// Number of devices of a type. For some types LibTorch has a guard although it has no kernels:
/// those count no devices.
int count_of(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return 1;
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(type)].load();
  return guard == nullptr ? 0 : guard->deviceCount();
}

/// No tensors with data: nothing is trained there.
bool has_data(c10::DeviceType type) {
  return type != c10::DeviceType::Meta && type != c10::DeviceType::FPGA;
}

}  // namespace

std::vector<OfferedDevice> offered_devices() {
  std::vector<OfferedDevice> devices;
  for (int i = 0; i < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++i) {
    const auto type = static_cast<c10::DeviceType>(i);
    if (!has_data(type)) continue;
    if (const int count = count_of(type); count > 0)
      devices.push_back({type, c10::DeviceTypeName(type, /*lower_case=*/true), count});
  }
  return devices;
}

std::string offered_text() {
  std::string text;
  for (const OfferedDevice& device : offered_devices()) {
    text += (text.empty() ? "" : ", ") + device.name;
    if (device.type != c10::DeviceType::CPU) text += c10::str(" (", device.count, ")");
  }
  return text;
}

void* load_device_library(const std::string& path) {
  const std::string where = "--device-library " + path + ": ";
  if (!std::filesystem::exists(path)) {
    throw ConfigError(where +
                      "the file does not exist: expected the shared library that registers the "
                      "device with LibTorch when it is loaded");
  }
  void* library =
      dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = dlerror();
    throw ConfigError(
        c10::str(where, "the library does not load: ", why == nullptr ? "no reason given" : why,
                 ": expected one for LibTorch ", TORCH_VERSION,
                 ", whose other libraries are found (LD_LIBRARY_PATH)"));
  }
  return library;
}

OfferedDevice find_device(const std::string& name, const std::string& library) {
  const bool names_any_library = name == "privateuse1";
  for (const OfferedDevice& device : offered_devices()) {
    if (device.name == name || (names_any_library && device.type == c10::DeviceType::PrivateUse1))
      return device;
  }
  std::string what =
      c10::str("--device ", name, ": LibTorch ", TORCH_VERSION,
               " offers no such device in this process: expected one of ", offered_text());
  if (!library.empty()) {
    what += c10::str("; ", library, " registered \"", c10::get_privateuse1_backend(), "\" with ",
                     count_of(c10::DeviceType::PrivateUse1),
                     " devices: check that its driver finds one");
  } else if (name == "neuron") {
    what +=
        ": TorchNeuron registers it from Python only, which this program does not start; without "
        "--device-plugin torch_device it is the emulated one (`trellis portability --for "
        "torch_neuron`)";
  } else if (names_any_library) {
    what += ": give the library that registers it with --device-library";
  } else {
    what +=
        ": a GPU needs a driver and LibTorch's build for it; a device of another library is loaded "
        "with --device-library";
  }
  throw ConfigError(what);
}

}  // namespace trellis::device
