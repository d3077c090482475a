#pragma once

#include <string>

namespace trellis::trainer {

/// A device of LibTorch.
struct DeviceSource {
  std::string device = "cpu";
  std::string device_plugin = {};   ///< library of a provider, or "torch_device"; "": see
                                    ///< provider_of()
  std::string device_library = {};  ///< registers the device with LibTorch; "": none
  std::string backend = {};         ///< c10d backend of the device; "": bytes go through the host
};

}  // namespace trellis::trainer
