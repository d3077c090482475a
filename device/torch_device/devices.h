#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace trellis::device {

/// A type of device that LibTorch has in this process.
struct OfferedDevice {
  c10::DeviceType type = c10::DeviceType::CPU;
  std::string name;  ///< "cpu", "cuda", or the name that its library registered
  int count = 0;
};

/// Ascending by type; the CPU is always there, as one device.
[[nodiscard]] std::vector<OfferedDevice> offered_devices();
/// "cpu, cuda (8)".
[[nodiscard]] std::string offered_text();

/// Loads a library that registers a device when it is loaded. It stays: LibTorch keeps pointers
/// into it. Returns its handle for dlsym. Throws ConfigError: missing, does not load.
void* load_device_library(const std::string& path);

/// `name`: a device type of LibTorch, or what a library registered for PrivateUse1. Throws
/// ConfigError that names what is offered.
[[nodiscard]] OfferedDevice find_device(const std::string& name, const std::string& library);

}  // namespace trellis::device
